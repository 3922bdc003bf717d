/* SPDX-License-Identifier: Apache-2.0 */
/* Virtual memory management. A physical allocation lives until its last reference is gone: handles
 * (cuMemCreate, cuMemRetainAllocationHandle) and mappings alike, so it is charged that long.
 * Address ranges, multicast objects and host memory are no memory of the card.
 */
#include "hook.h"
#include "spin.h"

static uint32_t lock; /* one for all: these calls cost microseconds in the driver */
static uint64_t next_object;

static void enter(void) { gs_spin_enter(&lock); }
static void leave(void) { gs_spin_leave(&lock); }

/* An object's `extra`: it was exported, or it came from another process. */
enum { OWN, EXPORTED, IMPORTED };

static uint64_t lingering[GS_CARDS]; /* exported, released by us, still mapped elsewhere: charged on */

/* The last reference is gone. pre: entered. */
static void end(const struct gs_entry *object)
{
    int64_t bytes = (int64_t)object->bytes;
    if (object->extra == IMPORTED) {
        gs_share(object->card, 0, -bytes);
    } else if (object->extra == EXPORTED && gs_mapped_elsewhere(object->card)) {
        lingering[object->card] += object->bytes;
    } else {
        if (object->extra == EXPORTED)
            gs_share(object->card, -bytes, 0);
        gs_uncharge(object->card, object->bytes);
    }
}

/* A forked child released nothing. */
static void forget_all(void)
{
    lock = 0;
    for (int card = 0; card < GS_CARDS; card++)
        lingering[card] = 0;
}

GS_FORGET_AFTER_FORK(forget_all);

/* Give back what nobody maps any more; the bytes. */
static uint64_t release_lingering(int card)
{
    uint64_t bytes = card >= 0 ? __atomic_load_n(&lingering[card], __ATOMIC_RELAXED) : 0;
    if (!bytes || gs_mapped_elsewhere(card))
        return 0;
    bytes = __atomic_exchange_n(&lingering[card], 0, __ATOMIC_ACQ_REL);
    gs_share(card, -(int64_t)bytes, 0);
    gs_uncharge(card, bytes);
    return bytes;
}

GS_RECLAIM(release_lingering);

/* One reference more or less; the last one gives the memory back. pre: entered. */
static void refer(uint64_t number, int by)
{
    struct gs_entry object;
    if (gs_table_take(number, GS_KIND_OBJECT, &object) < 0)
        return;
    object.count += (uint32_t)by;
    if (object.count == 0)
        end(&object);
    else
        (void)gs_table_put(&object);
}

/* A handle came into being, or once more: it must be released once more. pre: entered. */
static void hold(uint64_t handle, uint64_t number)
{
    struct gs_entry entry;
    if (gs_table_take(handle, GS_KIND_HANDLE, &entry) < 0)
        entry = (struct gs_entry){.key = handle, .kind = GS_KIND_HANDLE, .extra = number};
    entry.count++;
    (void)gs_table_put(&entry);
}

static void adopt(uint64_t handle, int card, uint64_t bytes, uint64_t origin)
{
    enter();
    struct gs_entry object = {.key = ++next_object, .bytes = bytes, .card = (int16_t)card, .kind = GS_KIND_OBJECT,
                              .count = 1, .extra = origin};
    (void)gs_table_put(&object);
    hold(handle, object.key);
    leave();
}

GS_API CUresult cuMemCreate(CUmemHandle *handle, size_t bytes, const struct cu_mem_prop *wanted, uint64_t flags)
{
    int card = GS_CARD_NONE;
    if (gs_managed() && wanted)
        card = gs_card_at(&wanted->location);
    if (card == GS_CARD_NONE)
        return GS_REAL(cuMemCreate)(handle, bytes, wanted, flags);
    CUresult rc = gs_charge(card, bytes, __func__);
    if (rc != CUDA_SUCCESS)
        return rc;
    rc = GS_REAL(cuMemCreate)(handle, bytes, wanted, flags);
    if (rc != CUDA_SUCCESS) {
        gs_charge_undo(card, bytes);
        return rc;
    }
    gs_charge_done(card, bytes);
    adopt(*handle, card, bytes, OWN);
    return rc;
}

GS_API CUresult cuMemRelease(CUmemHandle handle)
{
    struct gs_entry entry;
    if (!gs_managed())
        return GS_REAL(cuMemRelease)(handle);
    enter(); /* held across the call: a released handle's value may come back at once */
    CUresult rc = GS_REAL(cuMemRelease)(handle);
    if (rc == CUDA_SUCCESS && gs_table_take(handle, GS_KIND_HANDLE, &entry) == 0) {
        if (--entry.count)
            (void)gs_table_put(&entry);
        refer(entry.extra, -1);
    }
    leave();
    return rc;
}

/* An import tells its size when it is first mapped. pre: entered. */
static void measure(uint64_t number, uint64_t bytes)
{
    struct gs_entry object;
    if (gs_table_get(number, GS_KIND_OBJECT, &object) < 0 || object.extra != IMPORTED || object.bytes)
        return;
    object.bytes = bytes;
    object.card = (int16_t)gs_card_here();
    gs_share(object.card, 0, (int64_t)bytes);
    (void)gs_table_put(&object);
}

GS_API CUresult cuMemMap(CUdeviceptr at, size_t bytes, size_t offset, CUmemHandle handle, uint64_t flags)
{
    struct gs_entry entry;
    if (!gs_managed())
        return GS_REAL(cuMemMap)(at, bytes, offset, handle, flags);
    enter();
    CUresult rc = GS_REAL(cuMemMap)(at, bytes, offset, handle, flags);
    if (rc == CUDA_SUCCESS && gs_table_get(handle, GS_KIND_HANDLE, &entry) == 0) {
        struct gs_entry mapping = {.key = at, .bytes = bytes, .kind = GS_KIND_MAPPING, .extra = entry.extra};
        (void)gs_table_put(&mapping);
        refer(entry.extra, 1);
        measure(entry.extra, bytes);
    }
    leave();
    return rc;
}

/* One call may unmap many mappings that lie side by side; holes in between are allowed to be ours
 * to find, so the range is walked from mapping to mapping in granules. */
GS_API CUresult cuMemUnmap(CUdeviceptr at, size_t bytes)
{
    struct gs_entry mapping;
    if (!gs_managed())
        return GS_REAL(cuMemUnmap)(at, bytes);
    enter();
    CUresult rc = GS_REAL(cuMemUnmap)(at, bytes);
    for (CUdeviceptr end = at + bytes; rc == CUDA_SUCCESS && at < end;) {
        if (gs_table_take(at, GS_KIND_MAPPING, &mapping) == 0) {
            refer(mapping.extra, -1);
            at += mapping.bytes ? mapping.bytes : GS_CHUNK;
        } else {
            at += 64 * 1024; /* smallest granule of cuMemGetAllocationGranularity seen */
        }
    }
    leave();
    return rc;
}

GS_API CUresult cuMemRetainAllocationHandle(CUmemHandle *handle, void *address)
{
    struct gs_entry mapping;
    if (!gs_managed())
        return GS_REAL(cuMemRetainAllocationHandle)(handle, address);
    enter();
    CUresult rc = GS_REAL(cuMemRetainAllocationHandle)(handle, address);
    if (rc == CUDA_SUCCESS && gs_table_around((CUdeviceptr)address, GS_KIND_MAPPING, &mapping) == 0) {
        hold(*handle, mapping.extra);
        refer(mapping.extra, 1);
    }
    leave();
    return rc;
}

/* Memory that another process created and is charged for. */
GS_API CUresult cuMemImportFromShareableHandle(CUmemHandle *handle, void *from, int type)
{
    CUresult rc = GS_REAL(cuMemImportFromShareableHandle)(handle, from, type);
    if (rc == CUDA_SUCCESS && gs_managed())
        adopt(*handle, GS_CARD_NONE, 0, IMPORTED);
    return rc;
}

/* From now on other processes may keep it alive. */
GS_API CUresult cuMemExportToShareableHandle(void *to, CUmemHandle handle, int type, uint64_t flags)
{
    struct gs_entry entry, object;
    CUresult rc = GS_REAL(cuMemExportToShareableHandle)(to, handle, type, flags);
    if (rc != CUDA_SUCCESS || !gs_managed())
        return rc;
    enter();
    if (gs_table_get(handle, GS_KIND_HANDLE, &entry) == 0 &&
        gs_table_get(entry.extra, GS_KIND_OBJECT, &object) == 0 && object.extra == OWN) {
        object.extra = EXPORTED;
        (void)gs_table_put(&object);
        gs_share(object.card, (int64_t)object.bytes, 0);
    }
    leave();
    return rc;
}
