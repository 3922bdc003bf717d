/* SPDX-License-Identifier: Apache-2.0 */
/* Memory pools: reserve in granules, hand out in stream order, give surplus back at synchronisation.
 *
 * A pool's reserved bytes stand in the card's books; what is free inside it does not.
 * Return convention: CUresult.
 */
#include "device.h"
#include "graph.h"
#include "memory.h"
#include "pool.h"
#include "sim.h"
#include "stream.h"

#include <string.h>

void sim_pool_init(struct sim_pool *pool, int device, enum hw_kind kind)
{
    *pool = (struct sim_pool){.tag = SIM_POOL, .device = device, .kind = kind, .counted = 1, .type = CU_MEM_PINNED,
                              .location = {CU_MEM_LOCATION_DEVICE, device}};
    for (int i = 1; i <= 3; i++)
        pool->flags[i] = 1; /* reuse is allowed in every way */
}

/* Make it a pool of pinned or managed memory in that place. Managed memory, and that of the host, is not in the card's
 * books: the first stands there as far as it is on a card. */
CUresult sim_pool_place(struct sim_pool *pool, const struct cu_location *location, int type)
{
    int on_device = location->type == CU_MEM_LOCATION_DEVICE, managed = type == CU_MEM_MANAGED;
    struct sim_device *device;
    if ((type != CU_MEM_PINNED && !managed) || location->type < CU_MEM_LOCATION_NONE ||
        location->type > CU_MEM_LOCATION_HOST_NUMA || (!managed && location->type == CU_MEM_LOCATION_NONE))
        return CUDA_ERROR_INVALID_VALUE;
    if (sim_params()->cuda_version < 13000 && (managed || location->type == CU_MEM_LOCATION_HOST))
        return CUDA_ERROR_NOT_SUPPORTED;
    if (on_device) {
        TRY(sim_check_device(location->id, &device));
        TRY(sim_client(device));
    }
    sim_pool_init(pool, on_device ? location->id : 0, HW_POOL);
    pool->counted = on_device && !managed;
    pool->type = type;
    pool->location = *location;
    return CUDA_SUCCESS;
}

struct sim_pool *sim_pool_check(void *handle)
{
    struct sim_pool *pool = handle;
    return pool && pool->tag == SIM_POOL ? pool : NULL;
}

/* Take bytes out of a pool, growing it where it has none free.  pre: the process's lock is held. */
CUresult sim_pool_take(struct sim_pool *pool, uint64_t bytes)
{
    uint64_t granule = pool->kind == HW_GRAPH ? sim_params()->graph_granule_bytes : sim_params()->pool_granule_bytes;
    if (pool->max_bytes && pool->used_bytes + bytes > pool->max_bytes)
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (pool->used_bytes + bytes > pool->reserved_bytes) {
        uint64_t more = sim_round(pool->used_bytes + bytes - pool->reserved_bytes, granule);
        CUresult full = pool->counted ? sim_charge(sim_device[pool->device], pool->kind, more) : CUDA_SUCCESS;
        if (full && granule > sim_params()->granule_bytes) { /* near the edge it takes what it needs */
            more = sim_round(pool->used_bytes + bytes - pool->reserved_bytes, sim_params()->granule_bytes);
            full = sim_charge(sim_device[pool->device], pool->kind, more);
        }
        if (full)
            return full;
        pool->reserved_bytes += more;
    }
    pool->used_bytes += bytes;
    pool->used_high = pool->used_bytes > pool->used_high ? pool->used_bytes : pool->used_high;
    pool->reserved_high = pool->reserved_bytes > pool->reserved_high ? pool->reserved_bytes : pool->reserved_high;
    return CUDA_SUCCESS;
}

/* Bytes come back to the pool; the card gets them at the next synchronisation. */
void sim_pool_give(struct sim_pool *pool, uint64_t bytes)
{
    pool->used_bytes -= bytes;
    if (pool->tag == SIM_DEAD)
        sim_pool_trim(pool, 0);
}

/* Give everything back to the card that is neither used nor to be kept. */
void sim_pool_trim(struct sim_pool *pool, uint64_t keep)
{
    uint64_t need = sim_round(pool->used_bytes > keep ? pool->used_bytes : keep, sim_params()->granule_bytes);
    if (pool->reserved_bytes <= need)
        return;
    if (pool->counted)
        sim_refund(sim_device[pool->device], pool->kind, pool->reserved_bytes - need);
    pool->reserved_bytes = need;
}

static struct sim_pool *made[1024]; /* created pools, for the release at synchronisation */
static unsigned made_count;

/* What synchronising does to pools: release what is above each one's threshold. */
void sim_pools_settle(struct sim_device *device)
{
    sim_pool_trim(&device->pool, device->pool.keep_bytes);
    for (unsigned i = 0; i < made_count; i++)
        if (made[i]->tag == SIM_POOL && sim_device[made[i]->device] == device)
            sim_pool_trim(made[i], made[i]->keep_bytes);
}

/* A place for a pool that was made.  pre: the process's lock is held. */
CUresult sim_pool_new(struct sim_pool **pool, const struct sim_pool *as, uint64_t max_bytes, int handle_types)
{
    unsigned slot = 0;
    while (slot < made_count && made[slot]->tag != SIM_DEAD)
        slot++;
    if (slot == sizeof made / sizeof *made)
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (slot == made_count)
        made[made_count++] = sim_new(sizeof **made);
    *pool = made[slot];
    **pool = *as;
    (*pool)->max_bytes = max_bytes;
    (*pool)->handle_types = handle_types;
    return CUDA_SUCCESS;
}

API CUresult cuMemPoolCreate(struct sim_pool **pool, const struct cu_pool_props *props)
{
    ENTER();
    if (!pool || !props)
        return CUDA_ERROR_INVALID_VALUE;
    struct sim_pool placed;
    TRY(sim_pool_place(&placed, &props->location, props->type));
    LOCKED();
    return sim_pool_new(pool, &placed, props->max_bytes, props->handle_types);
}

/* A destroyed pool lives on until its last allocation is freed. */
API CUresult cuMemPoolDestroy(void *handle)
{
    ENTER();
    LOCKED();
    struct sim_pool *pool = sim_pool_check(handle);
    if (!pool || pool->is_default)
        return CUDA_ERROR_INVALID_VALUE;
    sim_pool_trim(pool, 0);
    for (int i = 0; i < sim_devices; i++)
        if (sim_device[i]->current_pool == pool)
            sim_device[i]->current_pool = &sim_device[i]->pool;
    if (!pool->used_bytes)
        pool->tag = SIM_DEAD;
    else
        pool->keep_bytes = 0;
    return CUDA_SUCCESS;
}

/* Allocate from a pool, or record the allocation where the stream is being captured. */
static CUresult allocate(CUdeviceptr *pointer, uint64_t bytes, struct sim_pool *pool, struct sim_stream *stream)
{
    LOCKED();
    TRY(sim_device_error(sim_device[pool->device]));
    if (stream->capture)
        pool = &sim_device[pool->device]->graph_pool;
    uint64_t whole = sim_round(bytes, 512);
    if (!stream->capture)
        TRY(sim_pool_take(pool, whole));
    enum sim_range_kind kind = pool->type == CU_MEM_MANAGED ? SIM_RANGE_MANAGED : SIM_RANGE_POOL;
    struct sim_range *range = sim_range_new(stream->capture ? SIM_RANGE_GRAPH : kind, stream->context, bytes);
    if (!range) {
        if (!stream->capture)
            sim_pool_give(pool, whole);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *pointer = range->base;
    if (stream->capture) {
        struct sim_node *node;
        TRY(sim_capture_node(stream, CU_NODE_MEM_ALLOC, &node));
        node->bytes = bytes;
        node->pointer = range->base;
        return CUDA_SUCCESS;
    }
    range->pool = pool;
    range->charged_bytes = whole;
    if (kind == SIM_RANGE_MANAGED) {
        struct sim_device *device = sim_device_of(stream->context);
        CARD_LOCKED(device);
        hw_put(device->card, &device->client->managed_bytes, device->client->managed_bytes + bytes);
    }
    return CUDA_SUCCESS;
}

API CUresult cuMemAllocFromPoolAsync(CUdeviceptr *pointer, size_t bytes, void *handle, void *stream_handle)
{
    ENTER();
    struct sim_stream *stream;
    TRY(sim_stream_of(stream_handle, &stream));
    struct sim_pool *pool = sim_pool_check(handle);
    if (!pointer || !bytes || !pool || pool->imported)
        return CUDA_ERROR_INVALID_VALUE;
    return allocate(pointer, bytes, pool, stream);
}

API CUresult cuMemAllocAsync(CUdeviceptr *pointer, size_t bytes, void *stream_handle)
{
    ENTER();
    struct sim_stream *stream;
    TRY(sim_stream_of(stream_handle, &stream));
    if (!pointer || !bytes)
        return CUDA_ERROR_INVALID_VALUE;
    return allocate(pointer, bytes, sim_device_of(stream->context)->current_pool, stream);
}

API CUresult cuMemFreeAsync(CUdeviceptr pointer, void *stream_handle)
{
    ENTER();
    struct sim_stream *stream;
    TRY(sim_stream_of(stream_handle, &stream));
    LOCKED();
    CUdeviceptr base;
    uint64_t bytes;
    struct sim_range *range;
    TRY(sim_extent(pointer, &base, &bytes, &range));
    int imported = range->kind == SIM_RANGE_IMPORT && range->pool;
    if (base != pointer || (range->kind > SIM_RANGE_MANAGED && !imported))
        return CUDA_ERROR_INVALID_VALUE;
    if (stream->capture) {
        struct sim_node *node;
        TRY(sim_capture_node(stream, CU_NODE_MEM_FREE, &node));
        node->pointer = pointer;
        return CUDA_SUCCESS;
    }
    return range->kind == SIM_RANGE_SLAB ? sim_slab_give(range, pointer) : sim_free(range);
}
