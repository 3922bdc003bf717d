/* SPDX-License-Identifier: Apache-2.0 */
/* Direct allocations: charge, ask the driver, remember; forget, ask the driver, give back. */
#include "hook.h"
#include "pool.h"
#include "small.h"

/* Where the call is none of our business: no promise here, or no context (the driver says so). */
static int outside(int *card) { return !gs_managed() || (*card = gs_card_here()) == GS_CARD_NONE; }

/* What an allocation of its own takes from the card. */
static uint64_t whole(uint64_t bytes)
{
    return bytes > UINT64_MAX - GS_BLOCK ? bytes : (bytes + GS_BLOCK - 1) / GS_BLOCK * GS_BLOCK;
}

/* Charge what linear memory of `bytes` may take. */
static CUresult before(int card, uint64_t bytes, const char *api)
{
    return bytes <= GS_SMALL ? gs_small_begin(card, bytes, api) : gs_charge(card, whole(bytes), api);
}

/* The driver has answered `rc`: remember the address, or give the charge back. */
static CUresult after(CUresult rc, int card, uint64_t bytes, uint64_t at)
{
    if (bytes > GS_SMALL)
        return gs_finish_charge(rc, card, whole(bytes), at, GS_KIND_MEMORY);
    struct gs_entry entry = {.key = at, .bytes = bytes, .card = (int16_t)card, .kind = GS_KIND_MEMORY,
                             .count = GS_ENTRY_SMALL, .extra = gs_context_here()};
    gs_small_end(card, rc == CUDA_SUCCESS, at);
    if (rc == CUDA_SUCCESS)
        (void)gs_table_put(&entry);
    return rc;
}

GS_API CUresult cuMemAlloc_v2(CUdeviceptr *at, size_t bytes)
{
    int card;
    if (outside(&card))
        return GS_REAL(cuMemAlloc_v2)(at, bytes);
    CUresult rc = before(card, bytes, __func__);
    if (rc != CUDA_SUCCESS)
        return rc;
    rc = GS_REAL(cuMemAlloc_v2)(at, bytes);
    return after(rc, card, bytes, rc ? 0 : *at);
}

GS_API CUresult cuMemAlloc(uint32_t *at, unsigned bytes)
{
    int card;
    if (outside(&card))
        return GS_REAL(cuMemAlloc)(at, bytes);
    CUresult rc = before(card, bytes, __func__);
    if (rc != CUDA_SUCCESS)
        return rc;
    rc = GS_REAL(cuMemAlloc)(at, bytes);
    return after(rc, card, bytes, rc ? 0 : *at);
}

/* Managed memory may live on the host, yet all of it can come to the card: counted whole. */
GS_API CUresult cuMemAllocManaged(CUdeviceptr *at, size_t bytes, unsigned flags)
{
    int card;
    if (outside(&card))
        return GS_REAL(cuMemAllocManaged)(at, bytes, flags);
    if (gs.flags & GS_LIMITS_REFUSE_MANAGED) {
        gs_breach(GS_BREACH_MANAGED, card, bytes, __func__);
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    CUresult rc = gs_charge(card, whole(bytes), __func__);
    if (rc != CUDA_SUCCESS)
        return rc;
    rc = GS_REAL(cuMemAllocManaged)(at, bytes, flags);
    if (rc != CUDA_SUCCESS)
        return gs_finish_charge(rc, card, whole(bytes), 0, GS_KIND_MEMORY);
    struct gs_entry entry = {.key = *at, .bytes = whole(bytes), .card = (int16_t)card, .kind = GS_KIND_MEMORY,
                             .count = GS_ENTRY_MANAGED, .extra = gs_context_here()};
    gs_managed_more(card, (int64_t)entry.bytes);
    gs_charge_done(card, entry.bytes);
    (void)gs_table_put(&entry);
    return rc;
}

/* Rows are padded to at most 512 bytes (CU_DEVICE_ATTRIBUTE_TEXTURE_PITCH_ALIGNMENT and the
 * coalescing rules of cuMemAllocPitch); charged so, corrected by the pitch that came back. */
GS_API CUresult cuMemAllocPitch_v2(CUdeviceptr *at, size_t *pitch, size_t width, size_t height, unsigned element)
{
    int card;
    if (outside(&card))
        return GS_REAL(cuMemAllocPitch_v2)(at, pitch, width, height, element);
    uint64_t bytes;
    if (__builtin_mul_overflow((width + 511) & ~511ULL, height, &bytes))
        bytes = UINT64_MAX;
    CUresult rc = before(card, bytes, __func__);
    if (rc != CUDA_SUCCESS)
        return rc;
    rc = GS_REAL(cuMemAllocPitch_v2)(at, pitch, width, height, element);
    if (rc == CUDA_SUCCESS && *pitch * height > bytes) {
        CUresult more = before(card, *pitch * height, __func__);
        (void)after(CUDA_ERROR_OUT_OF_MEMORY, card, bytes, 0); /* the first charge goes either way */
        bytes = *pitch * height;
        if (more != CUDA_SUCCESS) {
            GS_REAL(cuMemFree_v2)(*at);
            return more;
        }
    }
    return after(rc, card, bytes, rc ? 0 : *at);
}

GS_API CUresult cuMemAllocPitch(uint32_t *at, unsigned *pitch, unsigned width, unsigned height, unsigned element)
{
    int card;
    if (outside(&card))
        return GS_REAL(cuMemAllocPitch)(at, pitch, width, height, element);
    uint64_t bytes = (((uint64_t)width + 511) & ~511ULL) * height;
    CUresult rc = before(card, bytes, __func__);
    if (rc != CUDA_SUCCESS)
        return rc;
    rc = GS_REAL(cuMemAllocPitch)(at, pitch, width, height, element);
    return after(rc, card, bytes, rc ? 0 : *at);
}

/* What the card may get back with an entry, before the ledger says so; an estimate sees to that by itself. */
static uint64_t most_of(const struct gs_entry *entry)
{
    if (gs_kind_estimated(entry->kind))
        return 0;
    return entry->kind == GS_KIND_MEMORY && entry->count & GS_ENTRY_SMALL ? GS_BLOCK : entry->bytes;
}

/* Out of the table before the driver is asked: it may hand the address to another thread at once. */
#define FREE(name, type, key_of, kind)                                                                                 \
    GS_API CUresult name(type it)                                                                                      \
    {                                                                                                                  \
        struct gs_entry entry;                                                                                         \
        int direct = gs_managed() && gs_table_take((uint64_t)(key_of), kind, &entry) == 0;                             \
        int pooled = !direct && (kind) == GS_KIND_MEMORY && gs_pool_take_entry((uint64_t)(key_of), &entry);                \
        uint64_t leaving = direct ? most_of(&entry) : 0;                                                               \
        if (leaving)                                                                                                   \
            gs_in_flight(entry.card, (int64_t)leaving);                                                                 \
        CUresult rc = GS_REAL(name)(it);                                                                               \
        if (rc != CUDA_SUCCESS && (direct || pooled))                                                                  \
            (void)gs_table_put(&entry);                                                                                \
        else if (direct)                                                                                               \
            gs_release_entry(&entry);                                                                                          \
        else if (pooled)                                                                                               \
            gs_pool_freed(entry.extra, entry.bytes), gs_pools_refresh();                                                   \
        if (leaving)                                                                                                   \
            gs_charge_done(entry.card, leaving);                                                                            \
        return rc;                                                                                                     \
    }

FREE(cuMemFree_v2, CUdeviceptr, it, GS_KIND_MEMORY)
FREE(cuMemFree, uint32_t, it, GS_KIND_MEMORY)
FREE(cuArrayDestroy, CUarray, it, GS_KIND_ARRAY)
FREE(cuMipmappedArrayDestroy, CUmipmap, it, GS_KIND_ARRAY)

/* Rows of an array are laid out in blocks, of 8 rows at least and of 16 times as many at most (the tiling of open
 * drivers, NVK's NIL): as many as the array is high, in powers of two. */
static uint64_t block_rows(uint64_t height)
{
    uint64_t rows = 8;
    while (rows < height && rows < 128)
        rows *= 2;
    return height > UINT64_MAX - rows ? UINT64_MAX : (height + rows - 1) / rows * rows;
}

/* An upper estimate of an array's bytes by its format: 1 to 4 bytes per channel; block formats are below that. Rows
 * are padded as those of cuMemAllocPitch may be. */
static uint64_t array_estimate(const struct cu_array3d *a, unsigned levels)
{
    static const uint8_t element[0x30] = {[0x01] = 1, [0x02] = 2, [0x03] = 4, [0x08] = 1, [0x09] = 2,
                                          [0x0a] = 4, [0x10] = 2, [0x20] = 4};
    uint64_t size = a->format >= 0 && a->format < 0x30 && element[a->format] ? element[a->format] : 4;
    uint64_t width = a->width, height = a->height, depth = a->depth ? a->depth : 1, sum = 0;
    int flat = a->flags & (CU_ARRAY_LAYERED | CU_ARRAY_CUBEMAP); /* depth counts layers there */
    for (unsigned level = 0; level < levels || level == 0; level++) {
        uint64_t one;
        if (__builtin_mul_overflow(width, size * a->channels, &one) || one > UINT64_MAX - 511 ||
            __builtin_mul_overflow((one + 511) & ~511ULL, height ? block_rows(height) : 1, &one) ||
            __builtin_mul_overflow(one, depth, &one) || __builtin_add_overflow(sum, one, &sum))
            return UINT64_MAX;
        width = width > 1 ? width / 2 : 1;
        height = height > 1 ? height / 2 : height;
        depth = !flat && depth > 1 ? depth / 2 : depth;
    }
    return sum;
}

/* What an array takes (levels > 0: one with mipmaps). The driver tells it of an array that has no memory yet: one of
 * the same shape is made for the question, where the driver is new enough (CUDA 11.6). */
static uint64_t array_bytes(const struct cu_array3d *wanted, unsigned levels)
{
    struct cu_array3d twin = *wanted;
    struct cu_array_need need = {0};
    CUdevice device;
    CUarray array;
    CUmipmap mipmap;
    if (wanted->flags & (CU_ARRAY_SPARSE | CU_ARRAY_DEFERRED))
        return 0; /* backed by cuMemMapArrayAsync with memory of cuMemCreate, charged there */
    twin.flags |= CU_ARRAY_DEFERRED;
    if (!GS_HAS(cuArrayGetMemoryRequirements) || GS_REAL(cuCtxGetDevice)(&device) != CUDA_SUCCESS)
        return array_estimate(wanted, levels);
    if (!levels && GS_REAL(cuArray3DCreate_v2)(&array, &twin) == CUDA_SUCCESS) {
        (void)GS_REAL(cuArrayGetMemoryRequirements)(&need, array, device);
        GS_REAL(cuArrayDestroy)(array);
    } else if (levels && GS_REAL(cuMipmappedArrayCreate)(&mipmap, &twin, levels) == CUDA_SUCCESS) {
        (void)GS_REAL(cuMipmappedArrayGetMemoryRequirements)(&need, mipmap, device);
        GS_REAL(cuMipmappedArrayDestroy)(mipmap);
    }
    return need.bytes ? need.bytes : array_estimate(wanted, levels);
}

GS_API CUresult cuArray3DCreate_v2(CUarray *array, const struct cu_array3d *wanted)
{
    int card;
    if (outside(&card) || !wanted)
        return GS_REAL(cuArray3DCreate_v2)(array, wanted);
    uint64_t bytes = whole(array_bytes(wanted, 0));
    CUresult rc = gs_charge(card, bytes, __func__);
    if (rc != CUDA_SUCCESS)
        return rc;
    rc = GS_REAL(cuArray3DCreate_v2)(array, wanted);
    return gs_finish_charge(rc, card, bytes, rc ? 0 : (uint64_t)*array, GS_KIND_ARRAY);
}

GS_API CUresult cuArrayCreate_v2(CUarray *array, const struct cu_array *wanted)
{
    int card;
    if (outside(&card) || !wanted)
        return GS_REAL(cuArrayCreate_v2)(array, wanted);
    struct cu_array3d as = {.width = wanted->width, .height = wanted->height, .format = wanted->format,
                            .channels = wanted->channels};
    uint64_t bytes = whole(array_bytes(&as, 0));
    CUresult rc = gs_charge(card, bytes, __func__);
    if (rc != CUDA_SUCCESS)
        return rc;
    rc = GS_REAL(cuArrayCreate_v2)(array, wanted);
    return gs_finish_charge(rc, card, bytes, rc ? 0 : (uint64_t)*array, GS_KIND_ARRAY);
}

GS_API CUresult cuMipmappedArrayCreate(CUmipmap *array, const struct cu_array3d *wanted, unsigned levels)
{
    int card;
    if (outside(&card) || !wanted)
        return GS_REAL(cuMipmappedArrayCreate)(array, wanted, levels);
    uint64_t bytes = whole(array_bytes(wanted, levels < 32 ? levels : 32));
    CUresult rc = gs_charge(card, bytes, __func__);
    if (rc != CUDA_SUCCESS)
        return rc;
    rc = GS_REAL(cuMipmappedArrayCreate)(array, wanted, levels);
    return gs_finish_charge(rc, card, bytes, rc ? 0 : (uint64_t)*array, GS_KIND_ARRAY);
}

/* The 32-bit forms of CUDA 3.1 and before cannot be sized by their old layouts: not promised. */
GS_API CUresult cuArrayCreate(CUarray *array, const void *wanted)
{
    return gs_managed() ? CUDA_ERROR_NOT_SUPPORTED : GS_REAL(cuArrayCreate)(array, wanted);
}

GS_API CUresult cuArray3DCreate(CUarray *array, const void *wanted)
{
    return gs_managed() ? CUDA_ERROR_NOT_SUPPORTED : GS_REAL(cuArray3DCreate)(array, wanted);
}

GS_API CUresult cuIpcGetMemHandle(struct cu_ipc_handle *handle, CUdeviceptr at)
{
    struct gs_entry entry;
    CUresult rc = GS_REAL(cuIpcGetMemHandle)(handle, at);
    if (rc == CUDA_SUCCESS && gs_managed() && gs_table_get(at, GS_KIND_MEMORY, &entry) == 0 &&
        !(entry.count & GS_ENTRY_EXPORTED)) {
        entry.count |= GS_ENTRY_EXPORTED;
        (void)gs_table_put(&entry);
        gs_share(entry.card, (int64_t)entry.bytes, 0);
    }
    return rc;
}

/* Memory of another process, charged there, and here only in what must outlive that process. */
static CUresult opened(CUresult rc, CUdeviceptr *at)
{
    struct gs_entry entry;
    CUdeviceptr base;
    size_t bytes = 0;
    int card;
    if (rc != CUDA_SUCCESS || outside(&card))
        return rc;
    if (gs_table_take(*at, GS_KIND_IMPORT, &entry) < 0) {
        if (GS_REAL(cuMemGetAddressRange_v2)(&base, &bytes, *at) != CUDA_SUCCESS)
            bytes = 0;
        entry = (struct gs_entry){.key = *at, .kind = GS_KIND_IMPORT, .card = (int16_t)card, .bytes = bytes};
        gs_share(card, 0, (int64_t)bytes);
    }
    entry.count++; /* the driver counts opens of one handle too */
    (void)gs_table_put(&entry);
    return rc;
}

GS_API CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *at, struct cu_ipc_handle handle, unsigned flags)
{
    return opened(GS_REAL(cuIpcOpenMemHandle_v2)(at, handle, flags), at);
}

GS_API CUresult cuIpcOpenMemHandle(CUdeviceptr *at, struct cu_ipc_handle handle, unsigned flags)
{
    return opened(GS_REAL(cuIpcOpenMemHandle)(at, handle, flags), at);
}

GS_API CUresult cuIpcCloseMemHandle(CUdeviceptr at)
{
    struct gs_entry entry;
    CUresult rc = GS_REAL(cuIpcCloseMemHandle)(at);
    if (rc != CUDA_SUCCESS || !gs_managed() || gs_table_take(at, GS_KIND_IMPORT, &entry) < 0)
        return rc;
    if (--entry.count)
        (void)gs_table_put(&entry);
    else
        gs_share(entry.card, 0, -(int64_t)entry.bytes);
    return rc;
}
