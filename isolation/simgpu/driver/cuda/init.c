/* SPDX-License-Identifier: Apache-2.0 */
/* Starting the simulated driver in a process: the hardware file, visible devices, the lock, forks.
 * Return convention: CUresult. */
#define _GNU_SOURCE
#include "device.h"
#include "pool.h"
#include "sim.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/mman.h>

struct hw sim_hw;
struct sim_device *sim_device[SIM_MAX_DEVICES];
int sim_devices;

static pthread_mutex_t lock = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
static int ready;           /* cuInit succeeded */
static volatile int *alive; /* one page that a fork wipes: 1 in the process that called cuInit */

/* Take what guards everything in this process. */
void sim_lock(void)
{
    pthread_mutex_lock(&lock);
}

void sim_unlock(void)
{
    pthread_mutex_unlock(&lock);
}

/* May this process call the driver? A forked child of a process that did may not, as on hardware. */
CUresult sim_enter(void)
{
    if (__builtin_expect(__atomic_load_n(&ready, __ATOMIC_ACQUIRE) && *alive, 1))
        return CUDA_SUCCESS;
    return CUDA_ERROR_NOT_INITIALIZED;
}

/* Zeroed memory that is never given back; a simulator that has none left stops. */
void *sim_new(size_t bytes)
{
    void *memory = calloc(1, bytes);
    if (!memory)
        abort();
    return memory;
}

/* A copy of `length` characters, with a zero behind them. */
char *sim_text(const char *text, size_t length)
{
    char *copy = sim_new(length + 1);
    memcpy(copy, text, length);
    return copy;
}

/* Append a card to the visible devices. */
static void add_device(int card)
{
    struct sim_device *device = sim_new(sizeof *device);
    device->index = card;
    device->card = &sim_hw.file->card[card];
    sim_pool_init(&device->pool, sim_devices, HW_POOL);
    sim_pool_init(&device->graph_pool, sim_devices, HW_GRAPH);
    device->pool.is_default = device->graph_pool.is_default = 1;
    device->current_pool = &device->pool;
    sim_device[sim_devices++] = device;
}

static int faster(const void *a, const void *b)
{
    const int *x = a, *y = b;
    const struct hw_model *m = &sim_hw.file->card[*x].model, *n = &sim_hw.file->card[*y].model;
    uint64_t p = m->sms * m->sm_mhz, q = n->sms * n->sm_mhz;
    return p != q ? (p < q ? 1 : -1) : *x - *y;
}

/* The cards that a process sees unasked: whole ones, fastest first unless CUDA_DEVICE_ORDER says
 * PCI_BUS_ID; on a box of divided cards only, its first instance. Returns how many. */
static int all_cards(int *cards)
{
    int count = 0, instance = -1;
    for (int i = 0; i < (int)sim_hw.file->cards; i++) {
        const struct hw_model *model = &sim_hw.file->card[i].model;
        if (sim_hw.mps.pid && !hw_server(&sim_hw, &sim_hw.file->card[i]))
            continue; /* a client sees what its server sees */
        if (!model->mig && !model->parent)
            cards[count++] = i;
        else if (model->parent && instance < 0)
            instance = i;
    }
    const char *order = getenv("CUDA_DEVICE_ORDER");
    if (!order || strcmp(order, "PCI_BUS_ID"))
        qsort(cards, (size_t)count, sizeof *cards, faster);
    if (!count && instance >= 0)
        cards[count++] = instance;
    return count;
}

/* The card that one entry of CUDA_VISIBLE_DEVICES names (index or unique UUID prefix), or -1. */
static int card_named(const char *name, size_t length, const int *cards, int count)
{
    if (isdigit((unsigned char)*name)) {
        long index = strtol(name, NULL, 10);
        return index < count ? cards[index] : -1;
    }
    int found = -1;
    for (int i = 0; i < (int)sim_hw.file->cards; i++) {
        char text[64];
        hw_uuid(&sim_hw.file->card[i].model, text, sizeof text);
        if (length < 5 || strncasecmp(text, name, length) || sim_hw.file->card[i].model.mig)
            continue;
        if (sim_hw.mps.pid && !hw_server(&sim_hw, &sim_hw.file->card[i]))
            continue;
        if (found >= 0)
            return -1;
        found = i;
    }
    return found;
}

/* Fill the table of devices; the list ends at the first name that is no card, as NVIDIA's does. */
static void find_devices(void)
{
    int cards[HW_MAX_CARDS], count = all_cards(cards);
    const char *at = getenv("CUDA_VISIBLE_DEVICES");
    if (!at) {
        for (int i = 0; i < count; i++)
            add_device(cards[i]);
        return;
    }
    while (*at && sim_devices < SIM_MAX_DEVICES) {
        at += strspn(at, " ");
        size_t length = strcspn(at, ", ");
        int card = length ? card_named(at, length, cards, count) : -1;
        for (int i = 0; card >= 0 && i < sim_devices; i++)
            if (sim_device[i]->index == card) { /* named twice: nothing is visible */
                sim_devices = 0;
                return;
            }
        if (card < 0)
            return;
        add_device(card);
        at += length + strspn(at + length, " ");
        at += *at == ',';
    }
}

/* Map the hardware and take a process slot; once per process. */
static CUresult start(void)
{
    char path[4096];
    if (hw_path(path, sizeof path, (const void *)start) || hw_open(&sim_hw, path))
        return CUDA_ERROR_NO_DEVICE;
    TRY(sim_join_mps());
    find_devices();
    if (!sim_devices)
        return CUDA_ERROR_NO_DEVICE;
    if (hw_join(&sim_hw))
        return CUDA_ERROR_SYSTEM_NOT_READY;
    void *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED)
        return CUDA_ERROR_OPERATING_SYSTEM;
    alive = page;
    *alive = 1;
    madvise(page, 4096, MADV_WIPEONFORK);
    __atomic_store_n(&ready, 1, __ATOMIC_RELEASE);
    return CUDA_SUCCESS;
}

API CUresult cuInit(unsigned flags)
{
    if (flags)
        return CUDA_ERROR_INVALID_VALUE;
    if (__atomic_load_n(&ready, __ATOMIC_ACQUIRE)) /* before the lock, which a fork may have caught taken */
        return sim_enter();
    LOCKED();
    if (ready)
        return CUDA_SUCCESS;
    CUresult result = start();
    if (result) {
        sim_devices = 0;
        hw_close(&sim_hw);
    }
    return result;
}

API CUresult cuDriverGetVersion(int *version)
{
    if (!version)
        return CUDA_ERROR_INVALID_VALUE;
    char path[4096];
    struct hw hw;
    if (__atomic_load_n(&ready, __ATOMIC_ACQUIRE)) {
        *version = (int)sim_params()->cuda_version;
        return CUDA_SUCCESS;
    }
    if (hw_path(path, sizeof path, (const void *)start) || hw_open(&hw, path))
        return CUDA_ERROR_NO_DEVICE;
    *version = (int)hw.file->params.cuda_version;
    hw_close(&hw);
    return CUDA_SUCCESS;
}
