/* SPDX-License-Identifier: Apache-2.0 */
/* Allocation in stream order. A request is charged before the driver is asked, and then the pool's
 * own figure of reserved bytes replaces the guess (pool.c). It falls when streams are synchronised,
 * so it is read again then.
 */
#include "capture.h"
#include "hook.h"
#include "limiter.h"
#include "pool.h"

static CUpool current_pool(CUdevice device)
{
    CUpool pool = NULL;
    if (!GS_HAS(cuDeviceGetMemPool) || GS_REAL(cuDeviceGetMemPool)(&pool, device) != CUDA_SUCCESS)
        GS_REAL(cuDeviceGetDefaultMemPool)(&pool, device);
    return pool;
}

typedef CUresult (*from_pool)(CUdeviceptr *, size_t, CUpool, CUstream);
typedef CUresult (*from_current)(CUdeviceptr *, size_t, CUstream);

/* Charge, allocate through one of the two calls, true up; past the promise the allocation is freed. */
static CUresult allocate(CUdeviceptr *at, size_t bytes, CUpool pool, CUstream stream, from_pool named,
                         from_current unnamed, const char *api)
{
    CUdevice device;
    int card = GS_CARD_NONE;
    if (gs_managed() && GS_REAL(cuCtxGetDevice)(&device) == CUDA_SUCCESS)
        card = gs_card_of(device);
    if (card == GS_CARD_NONE)
        return named ? named(at, bytes, pool, stream) : unnamed(at, bytes, stream);
    if (gs_capturing(stream)) { /* it becomes a node of a graph */
        (void)gs_pool_of(NULL, device, card);
        return named ? named(at, bytes, pool, stream) : unnamed(at, bytes, stream);
    }
    struct gs_pool *p = gs_pool_of(named ? pool : current_pool(device), device, card);
    if (p && p->card == GS_CARD_NONE) /* a pool of host memory */
        return named(at, bytes, pool, stream);
    struct gs_pool_call guess;
    CUresult rc = p ? gs_pool_begin(p, bytes, &guess, api) : CUDA_ERROR_OUT_OF_MEMORY;
    if (rc != CUDA_SUCCESS)
        return rc;
    rc = named ? named(at, bytes, pool, stream) : unnamed(at, bytes, stream);
    if (rc == CUDA_SUCCESS && !gs_pool_fits(&guess, bytes)) {
        GS_REAL(cuMemFreeAsync)(*at, stream);
        GS_REAL(cuStreamSynchronize)(stream);
        gs_breach(GS_BREACH_DENIED, p->card, bytes, api);
        rc = CUDA_ERROR_OUT_OF_MEMORY;
    } else if (rc == CUDA_SUCCESS) {
        struct gs_entry entry = {.key = *at, .bytes = bytes, .card = (int16_t)p->card, .kind = GS_KIND_POOLED,
                                 .extra = guess.number};
        (void)gs_table_put(&entry);
    }
    gs_pool_end(&guess);
    return rc;
}

GS_API CUresult cuMemAllocAsync(CUdeviceptr *at, size_t bytes, CUstream stream)
{
    return allocate(at, bytes, NULL, stream, NULL, GS_REAL(cuMemAllocAsync), __func__);
}

GS_API CUresult cuMemAllocAsync_ptsz(CUdeviceptr *at, size_t bytes, CUstream stream)
{
    return allocate(at, bytes, NULL, stream, NULL, GS_REAL(cuMemAllocAsync_ptsz), __func__);
}

GS_API CUresult cuMemAllocFromPoolAsync(CUdeviceptr *at, size_t bytes, CUpool pool, CUstream stream)
{
    return allocate(at, bytes, pool, stream, GS_REAL(cuMemAllocFromPoolAsync), NULL, __func__);
}

GS_API CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *at, size_t bytes, CUpool pool, CUstream stream)
{
    return allocate(at, bytes, pool, stream, GS_REAL(cuMemAllocFromPoolAsync_ptsz), NULL, __func__);
}

/* An address of cuMemAlloc may be freed this way too. */
static CUresult free_async(CUdeviceptr at, CUstream stream, CUresult (*real)(CUdeviceptr, CUstream))
{
    struct gs_entry entry;
    int direct = gs_managed() && gs_table_take(at, GS_KIND_MEMORY, &entry) == 0;
    int pooled = !direct && gs_managed() && gs_table_take(at, GS_KIND_POOLED, &entry) == 0;
    CUresult rc = real(at, stream);
    if (rc != CUDA_SUCCESS && (direct || pooled))
        (void)gs_table_put(&entry);
    else if (direct)
        gs_release_entry(&entry);
    else if (pooled)
        gs_pool_freed(entry.extra, entry.bytes);
    return rc;
}

GS_API CUresult cuMemFreeAsync(CUdeviceptr at, CUstream stream)
{
    return free_async(at, stream, GS_REAL(cuMemFreeAsync));
}

GS_API CUresult cuMemFreeAsync_ptsz(CUdeviceptr at, CUstream stream)
{
    return free_async(at, stream, GS_REAL(cuMemFreeAsync_ptsz));
}

/* Managed memory may come to any card: that of its preferred place, else the current one, else the first. */
static int card_of_pool(const struct cu_location *location, int type)
{
    int card = gs_card_at(location);
    if (type == CU_ALLOCATION_MANAGED && card == GS_CARD_NONE && (card = gs_card_here()) == GS_CARD_NONE)
        card = gs_card_of(0);
    return card;
}

/* Managed memory is refused where the promise says so, from pools as from cuMemAllocManaged. */
static int refused(const struct cu_location *location, int type, const char *api)
{
    if (type != CU_ALLOCATION_MANAGED || !(gs.flags & GS_LIMITS_REFUSE_MANAGED))
        return 0;
    gs_breach(GS_BREACH_MANAGED, card_of_pool(location, type), 0, api);
    return 1;
}

/* A pool that is known by where it lies and what it holds. */
#define POOL(name, parameters, where, type, ...)                                                                       \
    GS_API CUresult name parameters                                                                                    \
    {                                                                                                                  \
        int bound = gs_managed() && where;                                                                             \
        if (bound && refused(where, type, __func__))                                                                   \
            return CUDA_ERROR_NOT_SUPPORTED;                                                                           \
        CUresult rc = GS_REAL(name)(__VA_ARGS__);                                                                      \
        if (bound && rc == CUDA_SUCCESS)                                                                               \
            (void)gs_pool_of(*pool, (where)->id, card_of_pool(where, type));                                        \
        return rc;                                                                                                     \
    }

POOL(cuMemPoolCreate, (CUpool * pool, const struct cu_pool_props *props), (props ? &props->location : NULL),
     props->type, pool, props)
POOL(cuMemGetDefaultMemPool, (CUpool * pool, const struct cu_location *where, int type), where, type, pool, where, type)
POOL(cuMemGetMemPool, (CUpool * pool, const struct cu_location *where, int type), where, type, pool, where, type)

GS_API CUresult cuMemPoolDestroy(CUpool pool)
{
    uint64_t number = gs_managed() ? gs_pool_destroying(pool) : 0;
    CUresult rc = GS_REAL(cuMemPoolDestroy)(pool);
    gs_pool_destroyed(number, rc == CUDA_SUCCESS);
    return rc;
}

#define THEN_LOOK(name, parameters, arguments, also)                                                                   \
    GS_API CUresult name parameters                                                                                    \
    {                                                                                                                  \
        CUresult rc = GS_REAL(name) arguments;                                                                         \
        gs_pools_refresh();                                                                                               \
        also;                                                                                                          \
        return rc;                                                                                                     \
    }

THEN_LOOK(cuMemPoolTrimTo, (CUpool pool, size_t keep), (pool, keep), (void)0)
THEN_LOOK(cuStreamSynchronize, (CUstream stream), (stream), gs_limiter_after_wait())
THEN_LOOK(cuStreamSynchronize_ptsz, (CUstream stream), (stream), gs_limiter_after_wait())
THEN_LOOK(cuEventSynchronize, (CUevent event), (event), gs_limiter_after_wait())
THEN_LOOK(cuCtxSynchronize, (void), (), gs_limiter_after_wait())
THEN_LOOK(cuCtxSynchronize_v2, (CUcontext context), (context), gs_limiter_after_wait())

GS_API CUresult cuDeviceGraphMemTrim(CUdevice device)
{
    return gs_managed() ? gs_graphs_trim(device) : GS_REAL(cuDeviceGraphMemTrim)(device);
}
