/* NVML shows the promise: only the promised cards, numbered from 0, of the promised size, and only
 * this container's processes. CUDA_VISIBLE_DEVICES does none of that for NVML.
 */
#include "elf.h"
#include "hook.h"
#include "nvml_subset.h"

#define MOST 64 /* cards of a machine that are looked through */

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
    for (unsigned i = 0; i < count && i < MOST; i++) {
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
    nvmlReturn rc = walk(MOST, NULL, NULL, count);
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
    if (rc == NVML_SUCCESS && BOUND && walk(MOST, NULL, device, &before) == NVML_SUCCESS)
        *index = before;
    return rc;
}

GS_API nvmlReturn nvmlDeviceGetMemoryInfo(nvmlDevice device, struct nvml_memory *memory)
{
    nvmlReturn rc = GS_REAL(nvmlDeviceGetMemoryInfo)(device, memory);
    int card;
    if (rc != NVML_SUCCESS || !BOUND || (card = card_of(device)) < 0)
        return rc;
    uint64_t limit, left = gs_left(card, &limit);
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
    uint64_t limit, left = gs_left(card, &limit);
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

/* The list is asked for whole, then thinned in place; `count` follows NVML's protocol: room on the
 * way in, entries (or, with too little room, the need) on the way out. */
#define LIST(name, type)                                                                                               \
    GS_API nvmlReturn name(nvmlDevice device, unsigned *count, type *list)                                             \
    {                                                                                                                  \
        type all[256];                                                                                                 \
        unsigned room = count ? *count : 0, have = sizeof all / sizeof *all, kept = 0;                                 \
        if (!BOUND || !count)                                                                                          \
            return GS_REAL(name)(device, count, list);                                                                 \
        nvmlReturn rc = GS_REAL(name)(device, &have, all);                                                             \
        if (rc != NVML_SUCCESS)                                                                                        \
            return rc;                                                                                                 \
        for (unsigned i = 0; i < have; i++) {                                                                          \
            if (!ours(all[i].pid))                                                                                     \
                continue;                                                                                              \
            if (kept < room && list)                                                                                   \
                list[kept] = all[i];                                                                                   \
            kept++;                                                                                                    \
        }                                                                                                              \
        *count = kept;                                                                                                 \
        return kept > room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;                                              \
    }

LIST(nvmlDeviceGetComputeRunningProcesses, struct nvml_process1)
LIST(nvmlDeviceGetComputeRunningProcesses_v2, struct nvml_process2)
LIST(nvmlDeviceGetComputeRunningProcesses_v3, struct nvml_process2)
LIST(nvmlDeviceGetGraphicsRunningProcesses, struct nvml_process1)
LIST(nvmlDeviceGetGraphicsRunningProcesses_v2, struct nvml_process2)
LIST(nvmlDeviceGetGraphicsRunningProcesses_v3, struct nvml_process2)
LIST(nvmlDeviceGetMPSComputeRunningProcesses, struct nvml_process1)
LIST(nvmlDeviceGetMPSComputeRunningProcesses_v2, struct nvml_process2)
LIST(nvmlDeviceGetMPSComputeRunningProcesses_v3, struct nvml_process2)
