/* SPDX-License-Identifier: Apache-2.0 */
/* What `gpushare simgpu` asks: create a hardware file, read its books, inject faults.
 *
 * Loaded by Python through ctypes; the structs here are mirrored in hardware.py.
 * Return convention: 0 or a count on success, a negative errno otherwise.
 */
#define _GNU_SOURCE
#include "hw.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define API __attribute__((visibility("default")))

struct card_book {
    struct hw_model model;
    uint64_t clock_ns, used_bytes, busy_ns, copy_ns, energy_uj, temperature_mc;
    uint64_t fault, ecc_corrected, ecc_uncorrected, throttle, xids, last_xid, active;
    uint64_t utilisation_percent, unowned_bytes, peak_bytes;
};

struct client_book {
    uint64_t state, pid, start_time, contexts;
    uint64_t bytes[HW_KINDS];
    uint64_t managed_bytes, total_bytes, peak_bytes, denied;
    uint64_t own_ns, launches, copies, slices, fault, queued, space_ns;
    uint64_t born_ns, gone_ns;
    char name[HW_NAME];
    char cgroup[HW_PATH];
};

API int simgpu_abi(uint64_t *sizes);
API const char *simgpu_param_name(uint64_t index);
API uint64_t simgpu_param_default(uint64_t index);
API int simgpu_create(const char *path, const char *driver, uint64_t cards, const struct hw_model *models,
                      const uint64_t *params);
API int simgpu_open(const char *path, void **handle);
API void simgpu_close(void *handle);
API int simgpu_cards(void *handle);
API int simgpu_driver(void *handle, char *text, uint64_t size);
API uint64_t simgpu_param(void *handle, uint64_t index);
API int simgpu_set_param(void *handle, uint64_t index, uint64_t value);
API int simgpu_settle(void *handle);
API uint64_t simgpu_clock(void *handle, int *stands);
API uint64_t simgpu_stop(void *handle);
API int simgpu_step(void *handle, uint64_t ns);
API int simgpu_go(void *handle);
API int simgpu_card(void *handle, uint64_t card, struct card_book *book);
API int simgpu_client(void *handle, uint64_t card, uint64_t index, struct client_book *book);
API uint64_t simgpu_used(void *handle, uint64_t card);
API int simgpu_inject(void *handle, uint64_t card, const char *what, uint64_t value);

static const char *const NAMES[] = {
#define X(name, value) #name,
    HW_PARAMS(X)
#undef X
};
static const uint64_t DEFAULTS[] = {
#define X(name, value) value,
    HW_PARAMS(X)
#undef X
};

/* Sizes of the mirrored structs: model, card book, client book; returns the file version. */
int simgpu_abi(uint64_t *sizes)
{
    sizes[0] = sizeof(struct hw_model);
    sizes[1] = sizeof(struct card_book);
    sizes[2] = sizeof(struct client_book);
    return HW_VERSION;
}

/* Name of a parameter, NULL past the last. */
const char *simgpu_param_name(uint64_t index)
{
    return index < HW_PARAM_COUNT ? NAMES[index] : NULL;
}

/* Its value in a file that names none. */
uint64_t simgpu_param_default(uint64_t index)
{
    return index < HW_PARAM_COUNT ? DEFAULTS[index] : 0;
}

/* Give the card its lock: shared between processes, handed on by the kernel when its holder dies. */
static int init_card(struct hw_card *card, const struct hw_model *model, uint64_t seed)
{
    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
    int error = pthread_mutex_init(&card->lock.mutex, &attributes);
    pthread_mutexattr_destroy(&attributes);
    card->model = *model;
    card->random = seed;
    card->temperature_mc = 32000;
    return -error;
}

/* Size a new file and describe it; the magic is written last, by simgpu_create. */
static int lay_out(int fd, const char *driver, uint64_t cards, const uint64_t *params)
{
    struct hw_file head = {.version = HW_VERSION, .cards = cards};
    struct timespec real;
    head.bytes = sizeof head + cards * sizeof(struct hw_card);
    clock_gettime(CLOCK_REALTIME, &real);
    head.realtime_ns = (uint64_t)real.tv_sec * 1000000000ull + (uint64_t)real.tv_nsec - hw_monotonic();
    snprintf(head.driver, sizeof head.driver, "%s", driver);
    memcpy(&head.params, params, sizeof head.params);
    head.magic = HW_MAGIC;
    if (ftruncate(fd, (off_t)head.bytes))
        return -errno;
    return pwrite(fd, &head, sizeof head, 0) == (ssize_t)sizeof head ? 0 : -EIO;
}

/* Write a new hardware file beside `path` and move it there: nobody ever maps half of one. */
int simgpu_create(const char *path, const char *driver, uint64_t cards, const struct hw_model *models,
                  const uint64_t *params)
{
    char draft[4096];
    if (!cards || cards > HW_MAX_CARDS)
        return -EINVAL;
    if (snprintf(draft, sizeof draft, "%s.%d", path, (int)getpid()) >= (int)sizeof draft)
        return -ENAMETOOLONG;
    int fd = open(draft, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd < 0)
        return -errno;
    int error = fchmod(fd, 0666) ? -errno : lay_out(fd, driver, cards, params);
    close(fd);
    struct hw *hw = calloc(1, sizeof *hw);
    if (!error)
        error = hw ? hw_open(hw, draft) : -ENOMEM;
    for (uint64_t i = 0; !error && i < cards; i++)
        error = init_card(&hw->file->card[i], &models[i], hw->file->params.seed * 1000003 + i);
    if (!error && rename(draft, path))
        error = -errno;
    if (error)
        unlink(draft);
    if (hw)
        hw_close(hw);
    free(hw);
    return error;
}

/* Open the books of a hardware file. */
int simgpu_open(const char *path, void **handle)
{
    struct hw *hw = calloc(1, sizeof *hw);
    int error = hw ? hw_open(hw, path) : -ENOMEM;
    if (error)
        free(hw);
    else
        *handle = hw;
    return error;
}

void simgpu_close(void *handle)
{
    hw_close(handle);
    free(handle);
}

int simgpu_cards(void *handle)
{
    return (int)((struct hw *)handle)->file->cards;
}

int simgpu_driver(void *handle, char *text, uint64_t size)
{
    return snprintf(text, size, "%s", ((struct hw *)handle)->file->driver);
}

uint64_t simgpu_param(void *handle, uint64_t index)
{
    return index < HW_PARAM_COUNT ? ((uint64_t *)&((struct hw *)handle)->file->params)[index] : 0;
}

/* Change a parameter; running processes see it at their next call. */
int simgpu_set_param(void *handle, uint64_t index, uint64_t value)
{
    if (index >= HW_PARAM_COUNT)
        return -EINVAL;
    __atomic_store_n(&((uint64_t *)&((struct hw *)handle)->file->params)[index], value, __ATOMIC_RELEASE);
    return 0;
}

/* Bring every card to the present and bury the dead. */
int simgpu_settle(void *handle)
{
    struct hw *hw = handle;
    for (uint64_t i = 0; i < hw->file->cards; i++) {
        struct hw_card *card = &hw->file->card[i];
        hw_lock(card);
        uint64_t now = hw_now(hw);
        hw_advance(hw, card, now);
        hw_reap(hw, card, now, 1);
        hw_unlock(card);
    }
    return 0;
}

static void set_clock(struct hw *hw, uint64_t word)
{
    __atomic_store_n(&hw->file->clock, word, __ATOMIC_SEQ_CST);
}

/* The device's clock, and whether it stands. */
uint64_t simgpu_clock(void *handle, int *stands)
{
    *stands = hw_stands(handle);
    return hw_now(handle);
}

/* Let the device's clock stand; where. Who read it just before has a card's lock: once each was ours, no card is
 * further than the clock, and all of them come as far. */
uint64_t simgpu_stop(void *handle)
{
    struct hw *hw = handle;
    uint64_t now = hw_now(hw);
    set_clock(hw, now << 1 | HW_STANDS);
    for (uint64_t i = 0; i < hw->file->cards; i++) {
        hw_lock(&hw->file->card[i]);
        now = hw->file->card[i].clock_ns > now ? hw->file->card[i].clock_ns : now;
        hw_unlock(&hw->file->card[i]);
    }
    set_clock(hw, now << 1 | HW_STANDS);
    simgpu_settle(hw);
    return now;
}

/* Move a clock that stands on by `ns`; -EINVAL where it runs. */
int simgpu_step(void *handle, uint64_t ns)
{
    struct hw *hw = handle;
    if (!hw_stands(hw))
        return -EINVAL;
    set_clock(hw, (hw_now(hw) + ns) << 1 | HW_STANDS);
    return simgpu_settle(hw);
}

/* Let the clock run from where it stands. */
int simgpu_go(void *handle)
{
    struct hw *hw = handle;
    if (hw_stands(hw))
        set_clock(hw, (hw_monotonic() - hw_now(hw)) << 1);
    return 0;
}

/* One card as its books show it now. */
int simgpu_card(void *handle, uint64_t index, struct card_book *book)
{
    struct hw *hw = handle;
    if (index >= hw->file->cards)
        return -ENOENT;
    struct hw_card *card = &hw->file->card[index];
    hw_lock(card);
    uint64_t latest = (card->samples + HW_SAMPLES - 1) % HW_SAMPLES, owned = 0;
    for (uint64_t i = 0; i < card->clients; i++)
        owned += card->client[i].total_bytes;
    *book = (struct card_book){
        .model = card->model, .clock_ns = card->clock_ns, .used_bytes = card->used_bytes,
        .busy_ns = card->busy_ns, .copy_ns = card->copy_ns, .energy_uj = card->energy_uj,
        .temperature_mc = card->temperature_mc, .fault = card->fault,
        .ecc_corrected = card->ecc_corrected, .ecc_uncorrected = card->ecc_uncorrected,
        .throttle = card->throttle, .xids = card->xids,
        .last_xid = card->xids ? card->xid[(card->xids - 1) % HW_XIDS].xid : 0, .active = card->active,
        .utilisation_percent = card->samples ? card->sample[latest].percent : 0,
        .unowned_bytes = card->used_bytes - owned,
        .peak_bytes = card->peak_bytes,
    };
    hw_unlock(card);
    return 0;
}

/* Bytes that a card has handed out. */
uint64_t simgpu_used(void *handle, uint64_t index)
{
    struct hw *hw = handle;
    struct hw_card *card = &hw->file->card[index];
    hw_lock(card);
    uint64_t used = card->used_bytes;
    hw_unlock(card);
    return used;
}

/* One client of a card: 1, or 0 for an unused entry, -ENOENT past the last. */
int simgpu_client(void *handle, uint64_t card_index, uint64_t index, struct client_book *book)
{
    struct hw *hw = handle;
    if (card_index >= hw->file->cards || index >= hw->file->card[card_index].clients)
        return -ENOENT;
    struct hw_card *card = &hw->file->card[card_index];
    const struct hw_client *client = &card->client[index];
    hw_lock(card);
    *book = (struct client_book){
        .state = client->state, .pid = client->pid, .start_time = client->start_time,
        .contexts = client->contexts, .managed_bytes = client->managed_bytes,
        .total_bytes = client->total_bytes, .peak_bytes = client->peak_bytes, .denied = client->denied,
        .own_ns = client->own_ns, .launches = client->launches, .copies = client->copies,
        .slices = client->slices, .fault = client->fault, .queued = client->tail - client->head,
        .space_ns = client->space_ns,
        .born_ns = client->born_ns, .gone_ns = client->gone_ns,
    };
    memcpy(book->bytes, client->bytes, sizeof book->bytes);
    memcpy(book->name, client->name, sizeof book->name);
    memcpy(book->cgroup, client->cgroup, sizeof book->cgroup);
    hw_unlock(card);
    return book->state != HW_FREE;
}

/* Set what NVML tells by that name; 0: there is none. */
static int set_told(struct hw_card *card, const char *what, uint64_t value)
{
    static const char *const names[] = {
#define X(name, text) text,
        HW_SETTINGS(X)
#undef X
    };
    for (unsigned i = 0; i < HW_SETTING_COUNT; i++)
        if (!strcmp(what, names[i])) {
            hw_put(card, &card->setting[i], value + 1);
            return 1;
        }
    return 0;
}

/* Make something go wrong: "xid", "lost" (1 or 0), "ecc-corrected", "ecc-uncorrected" (added),
 * "throttle" (NVML reason bits), "temperature" (degrees). -EINVAL for anything else. */
int simgpu_inject(void *handle, uint64_t index, const char *what, uint64_t value)
{
    struct hw *hw = handle;
    if (index >= hw->file->cards)
        return -ENOENT;
    struct hw_card *card = &hw->file->card[index];
    int known = 1;
    hw_lock(card);
    if (!strcmp(what, "xid"))
        hw_report_xid(card, value, 0);
    else if (!strcmp(what, "lost"))
        hw_put(card, &card->fault, value ? HW_FAULT_LOST : HW_FAULT_NONE);
    else if (!strcmp(what, "ecc-corrected"))
        hw_put(card, &card->ecc_corrected, card->ecc_corrected + value);
    else if (!strcmp(what, "ecc-uncorrected"))
        hw_put(card, &card->ecc_uncorrected, card->ecc_uncorrected + value);
    else if (!strcmp(what, "throttle"))
        hw_put(card, &card->throttle, value);
    else if (!strcmp(what, "temperature"))
        hw_put(card, &card->temperature_mc, value * 1000);
    else
        known = set_told(card, what, value);
    if (!strcmp(what, "lost") && value)
        hw_report_xid(card, 79, 0); /* "GPU has fallen off the bus" */
    hw_unlock(card);
    return known ? 0 : -EINVAL;
}
