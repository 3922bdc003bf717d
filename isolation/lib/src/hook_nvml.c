/* SPDX-License-Identifier: Apache-2.0 */
/* NVML shows the promise: only the promised cards, numbered from 0, of the promised size, and only
 * this container's processes. CUDA_VISIBLE_DEVICES does none of that for NVML.
 */
#include <sys/mman.h>

#include "elf.h"
#include "hook.h"
#include "nvml_subset.h"

#define MAX_CARDS 64 /* cards of a machine that are looked through */

/* Does the promise bind this call? NVML calls its own exported functions through the dynamic linker
 * (driver 535 does): those calls must see the machine as it is, or they would go round in circles. */
#define BOUND (gs_managed() && !gs_elf_within("libnvidia-ml.so", __builtin_return_address(0)))

static int digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    c |= 0x20;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* The promised card behind a handle, or -1. Text: `GPU-` or `MIG-` and 32 hex digits with dashes. */
static int listed(nvmlDevice device)
{
    char text[96];
    uint8_t uuid[16];
    int nibbles = 0;
    if (GS_REAL(nvmlDeviceGetUUID)(device, text, sizeof text) != NVML_SUCCESS)
        return -1;
    for (const char *p = text + (gs_starts(text, "GPU-") || gs_starts(text, "MIG-") ? 4 : 0); *p && nibbles < 32; p++) {
        int value = digit(*p);
        if (value < 0)
            continue;
        uuid[nibbles / 2] = (uint8_t)(nibbles % 2 ? uuid[nibbles / 2] << 4 | value : value);
        nibbles++;
    }
    for (uint32_t i = 0; nibbles == 32 && i < gs.cards; i++) {
        int same = 1;
        for (int b = 0; b < 16; b++)
            same &= gs.card[i].uuid[b] == uuid[b];
        if (same)
            return (int)i;
    }
    return -1;
}

/* The `wanted`-th promised instance of a divided card (MIG), counted from 0, or NVML_ERROR_NOT_FOUND. */
static nvmlReturn part_of(nvmlDevice device, unsigned wanted, nvmlDevice *part)
{
    unsigned most = 0;
    nvmlReturn rc = GS_REAL(nvmlDeviceGetMaxMigDeviceCount)(device, &most);
    if (rc != NVML_SUCCESS)
        return rc;
    for (unsigned i = 0; i < most; i++) {
        nvmlDevice one;
        if (GS_REAL(nvmlDeviceGetMigDeviceHandleByIndex)(device, i, &one) != NVML_SUCCESS || listed(one) < 0)
            continue;
        if (wanted-- == 0) {
            *part = one;
            return NVML_SUCCESS;
        }
    }
    return NVML_ERROR_NOT_FOUND;
}

/* The same, and for a divided card what was promised of its first promised instance: without the card
 * itself no program finds the instance. */
static int card_of(nvmlDevice device)
{
    unsigned divided = 0, pending;
    nvmlDevice part;
    int card = listed(device);
    if (card < 0 && GS_HAS(nvmlDeviceGetMigMode) &&
        GS_REAL(nvmlDeviceGetMigMode)(device, &divided, &pending) == NVML_SUCCESS && divided &&
        part_of(device, 0, &part) == NVML_SUCCESS)
        card = listed(part);
    return card;
}

static nvmlReturn real_count(unsigned *count)
{
    return GS_HAS(nvmlDeviceGetCount_v2) ? GS_REAL(nvmlDeviceGetCount_v2)(count) : GS_REAL(nvmlDeviceGetCount)(count);
}

static nvmlReturn real_handle(unsigned index, nvmlDevice *device)
{
    return GS_HAS(nvmlDeviceGetHandleByIndex_v2) ? GS_REAL(nvmlDeviceGetHandleByIndex_v2)(index, device)
                                                 : GS_REAL(nvmlDeviceGetHandleByIndex)(index, device);
}

/* Walk the promised cards in NVML's own order up to the `wanted`-th, or up to `device`; tells how many
 * there were before it. Returns NVML_SUCCESS where it was reached. */
static nvmlReturn walk(unsigned wanted, nvmlDevice *device, nvmlDevice until, unsigned *before)
{
    unsigned count = 0, seen = 0;
    nvmlReturn rc = real_count(&count);
    if (rc != NVML_SUCCESS)
        return rc;
    for (unsigned i = 0; i < count && i < MAX_CARDS; i++) {
        nvmlDevice one;
        if (real_handle(i, &one) != NVML_SUCCESS || card_of(one) < 0)
            continue;
        if (until ? one == until : seen == wanted) {
            if (device)
                *device = one;
            *before = seen;
            return NVML_SUCCESS;
        }
        seen++;
    }
    *before = seen;
    return NVML_ERROR_INVALID_ARGUMENT;
}

static nvmlReturn promised_count(unsigned *count)
{
    nvmlReturn rc = walk(MAX_CARDS, NULL, NULL, count);
    return rc == NVML_ERROR_INVALID_ARGUMENT ? NVML_SUCCESS : rc;
}

GS_API nvmlReturn nvmlDeviceGetCount(unsigned *count)
{
    return BOUND && count ? promised_count(count) : GS_REAL(nvmlDeviceGetCount)(count);
}

GS_API nvmlReturn nvmlDeviceGetCount_v2(unsigned *count)
{
    return BOUND && count ? promised_count(count) : GS_REAL(nvmlDeviceGetCount_v2)(count);
}

GS_API nvmlReturn nvmlDeviceGetHandleByIndex(unsigned index, nvmlDevice *device)
{
    unsigned before;
    return BOUND && device ? walk(index, device, NULL, &before)
                                  : GS_REAL(nvmlDeviceGetHandleByIndex)(index, device);
}

GS_API nvmlReturn nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice *device)
{
    unsigned before;
    return BOUND && device ? walk(index, device, NULL, &before)
                                  : GS_REAL(nvmlDeviceGetHandleByIndex_v2)(index, device);
}

GS_API nvmlReturn nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice device, unsigned index, nvmlDevice *part)
{
    return BOUND && part ? part_of(device, index, part)
                         : GS_REAL(nvmlDeviceGetMigDeviceHandleByIndex)(device, index, part);
}

/* A card that was not promised is not there. */
static nvmlReturn only_promised(nvmlReturn rc, int bound, nvmlDevice *device)
{
    if (rc != NVML_SUCCESS || !bound || card_of(*device) >= 0)
        return rc;
    *device = NULL;
    return NVML_ERROR_NOT_FOUND;
}

#define BY_NAME(name)                                                                                                  \
    GS_API nvmlReturn name(const char *which, nvmlDevice *device)                                                      \
    {                                                                                                                  \
        return only_promised(GS_REAL(name)(which, device), BOUND, device);                                             \
    }

BY_NAME(nvmlDeviceGetHandleByUUID)
BY_NAME(nvmlDeviceGetHandleBySerial)
BY_NAME(nvmlDeviceGetHandleByPciBusId)
BY_NAME(nvmlDeviceGetHandleByPciBusId_v2)

GS_API nvmlReturn nvmlDeviceGetIndex(nvmlDevice device, unsigned *index)
{
    unsigned before;
    nvmlReturn rc = GS_REAL(nvmlDeviceGetIndex)(device, index);
    if (rc == NVML_SUCCESS && BOUND && walk(MAX_CARDS, NULL, device, &before) == NVML_SUCCESS)
        *index = before;
    return rc;
}

/* nvidia-smi (535, 550) finds cards by index and lists processes by private functions, which know the whole machine. It gets
 * its table empty, the first word being the table's size, and asks the public functions. Other tables pass. */
GS_API nvmlReturn nvmlInternalGetExportTable(const void **table, const uint8_t *id)
{
    static const uint8_t private[16] = {0xc4, 0xfe, 0x3e, 0x6c, 0xc9, 0x8f, 0x6c, 0x4e,
                                        0xa3, 0x27, 0xee, 0x69, 0x6e, 0x12, 0xf7, 0xc4};
    static const size_t empty = sizeof empty;
    nvmlReturn rc = GS_REAL(nvmlInternalGetExportTable)(table, id);
    if (rc != NVML_SUCCESS || !BOUND)
        return rc;
    for (size_t i = 0; i < sizeof private; i++)
        if (id[i] != private[i])
            return rc;
    *table = &empty;
    return rc;
}

GS_API nvmlReturn nvmlDeviceGetMemoryInfo(nvmlDevice device, struct nvml_memory *memory)
{
    nvmlReturn rc = GS_REAL(nvmlDeviceGetMemoryInfo)(device, memory);
    int card;
    if (rc != NVML_SUCCESS || !BOUND || (card = card_of(device)) < 0)
        return rc;
    uint64_t limit, left = gs_available(card, &limit);
    memory->total = memory->total < limit ? memory->total : limit;
    memory->used = limit - left < memory->total ? limit - left : memory->total;
    left = memory->total - memory->used;
    memory->free = memory->free < left ? memory->free : left;
    return rc;
}

GS_API nvmlReturn nvmlDeviceGetMemoryInfo_v2(nvmlDevice device, struct nvml_memory2 *memory)
{
    nvmlReturn rc = GS_REAL(nvmlDeviceGetMemoryInfo_v2)(device, memory);
    int card;
    if (rc != NVML_SUCCESS || !BOUND || (card = card_of(device)) < 0)
        return rc;
    uint64_t limit, left = gs_available(card, &limit);
    memory->total = memory->total < limit ? memory->total : limit;
    memory->used = limit - left < memory->total ? limit - left : memory->total;
    memory->reserved = 0; /* what the driver keeps for itself is outside the promise */
    left = memory->total - memory->used;
    memory->free = memory->free < left ? memory->free : left;
    return rc;
}

/* Does a process of this container hold a slot under this pid? Host pids seen from inside a container
 * match none, so foreign processes never show. */
static int ours(uint32_t pid)
{
    uint32_t high = gs.region ? gs.region->slots_high : 0;
    for (uint32_t i = 0; i < high && i < GS_SLOTS; i++)
        if (gs.region->slots[i].state == GS_SLOT_LIVE && gs.region->slots[i].pid == pid)
            return 1;
    return 0;
}

#define ROOM 512 /* processes of a card that are looked through */

/* Keep those of this container's processes; `pid` is where an entry's stands. How many there are of them: `list` has
 * the first `room`. */
static unsigned thin(void *list, unsigned room, const void *all, unsigned have, size_t entry, size_t pid)
{
    unsigned kept = 0;
    for (const uint8_t *from = all; have--; from += entry) {
        if (!ours(*(const uint32_t *)(from + pid)))
            continue;
        for (size_t b = 0; list && kept < room && b < entry; b++)
            ((uint8_t *)list)[kept * entry + b] = from[b];
        kept++;
    }
    return kept;
}

/* The list is asked for whole, then thinned; `count` follows NVML's protocol: room on the way in, entries (or, with
 * too little room, the need) on the way out. Accounts may be of thousands, most of them gone. */
#define LIST(name, type, pid)                                                                                          \
    GS_API nvmlReturn name(nvmlDevice device, unsigned *count, type *list)                                             \
    {                                                                                                                  \
        type few[ROOM], *all = few;                                                                                    \
        unsigned room = count ? *count : 0, have = ROOM, most = ROOM;                                                  \
        if (!BOUND || !count)                                                                                          \
            return GS_REAL(name)(device, count, list);                                                                 \
        nvmlReturn rc = GS_REAL(name)(device, &have, few);                                                             \
        if (rc == NVML_ERROR_INSUFFICIENT_SIZE && have > ROOM && have < UINT32_MAX / 64) {                             \
            most = have += ROOM; /* who comes meanwhile has room too */                                                \
            all = gs_map(most * sizeof *all, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1);                 \
            rc = all ? GS_REAL(name)(device, &have, all) : rc;                                                         \
        }                                                                                                              \
        if (rc == NVML_SUCCESS) {                                                                                      \
            *count = thin(list, room, all, have, sizeof *all, pid);                                                    \
            rc = *count > room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;                                          \
        }                                                                                                              \
        if (all && all != few)                                                                                         \
            gs_unmap(all, most * sizeof *all);                                                                         \
        return rc;                                                                                                     \
    }
#define PROCESSES(name, type) LIST(name, type, offsetof(type, pid))

PROCESSES(nvmlDeviceGetComputeRunningProcesses, struct nvml_process1)
PROCESSES(nvmlDeviceGetComputeRunningProcesses_v2, struct nvml_process2)
PROCESSES(nvmlDeviceGetComputeRunningProcesses_v3, struct nvml_process2)
PROCESSES(nvmlDeviceGetGraphicsRunningProcesses, struct nvml_process1)
PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v2, struct nvml_process2)
PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v3, struct nvml_process2)
PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses, struct nvml_process1)
PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses_v2, struct nvml_process2)
PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses_v3, struct nvml_process2)
LIST(nvmlDeviceGetAccountingPids, uint32_t, 0)

/* The same for calls that take one structure with the list in it. */
GS_API nvmlReturn nvmlDeviceGetRunningProcessDetailList(nvmlDevice device, struct nvml_details *wanted)
{
    struct nvml_detail all[ROOM];
    if (!BOUND || !wanted)
        return GS_REAL(nvmlDeviceGetRunningProcessDetailList)(device, wanted);
    struct nvml_details whole = {wanted->version, wanted->mode, ROOM, all};
    nvmlReturn rc = GS_REAL(nvmlDeviceGetRunningProcessDetailList)(device, &whole);
    if (rc != NVML_SUCCESS)
        return rc;
    unsigned room = wanted->list ? wanted->count : 0;
    wanted->count = thin(wanted->list, room, all, whole.count, sizeof *all, offsetof(struct nvml_detail, pid));
    return wanted->count > room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

/* What NVML answers where it has `kept` samples: none is an error, unlike with the lists of processes. */
static nvmlReturn sampled(unsigned kept, unsigned room)
{
    return !kept ? NVML_ERROR_NOT_FOUND : kept > room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

GS_API nvmlReturn nvmlDeviceGetProcessUtilization(nvmlDevice device, struct nvml_sample *list, unsigned *count,
                                                  uint64_t since)
{
    struct nvml_sample all[ROOM];
    unsigned have = ROOM, room = count && list ? *count : 0;
    if (!BOUND || !count)
        return GS_REAL(nvmlDeviceGetProcessUtilization)(device, list, count, since);
    nvmlReturn rc = GS_REAL(nvmlDeviceGetProcessUtilization)(device, all, &have, since);
    if (rc != NVML_SUCCESS)
        return rc;
    *count = thin(list, room, all, have, sizeof *all, offsetof(struct nvml_sample, pid));
    return sampled(*count, room);
}

GS_API nvmlReturn nvmlDeviceGetProcessesUtilizationInfo(nvmlDevice device, struct nvml_samples1 *wanted)
{
    struct nvml_sample1 all[ROOM];
    if (!BOUND || !wanted)
        return GS_REAL(nvmlDeviceGetProcessesUtilizationInfo)(device, wanted);
    struct nvml_samples1 whole = {wanted->version, ROOM, wanted->since, all};
    nvmlReturn rc = GS_REAL(nvmlDeviceGetProcessesUtilizationInfo)(device, &whole);
    if (rc != NVML_SUCCESS)
        return rc;
    unsigned room = wanted->list ? wanted->count : 0;
    wanted->count = thin(wanted->list, room, all, whole.count, sizeof *all, offsetof(struct nvml_sample1, pid));
    return sampled(wanted->count, room);
}

/* Accounts are looked up by pid: another container's process is not known. The driver first, so that its errors stay
 * true, into a place of our own. */
GS_API nvmlReturn nvmlDeviceGetAccountingStats(nvmlDevice device, unsigned pid, struct nvml_account *out)
{
    struct nvml_account account = {0};
    int hidden = BOUND && !ours(pid);
    nvmlReturn rc = GS_REAL(nvmlDeviceGetAccountingStats)(device, pid, hidden && out ? &account : out);
    return rc == NVML_SUCCESS && hidden ? NVML_ERROR_NOT_FOUND : rc;
}

GS_API nvmlReturn nvmlDeviceGetAccountingStats_v2(nvmlDevice device, struct nvml_account2 *out)
{
    struct nvml_account2 account = {.pid = out ? out->pid : 0};
    int hidden = BOUND && !ours(account.pid);
    nvmlReturn rc = GS_REAL(nvmlDeviceGetAccountingStats_v2)(device, hidden && out ? &account : out);
    return rc == NVML_SUCCESS && hidden ? NVML_ERROR_NOT_FOUND : rc;
}
