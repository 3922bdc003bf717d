/* SPDX-License-Identifier: Apache-2.0 */
/* Device, host and managed memory.
 * Return convention: CUresult. */
#include "context.h"
#include "device.h"
#include "memory.h"
#include "pool.h"
#include "sim.h"
#include "stream.h"

#include <string.h>

/* Base, size and range of the allocation that an address lies in. */
CUresult sim_extent(CUdeviceptr address, CUdeviceptr *base, uint64_t *bytes, struct sim_range **range)
{
    *range = sim_range_at(address);
    if (!*range)
        return CUDA_ERROR_INVALID_VALUE;
    if ((*range)->kind == SIM_RANGE_SLAB)
        return sim_slab_find(*range, address, base, bytes) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    *base = (*range)->base;
    *bytes = (*range)->bytes;
    return CUDA_SUCCESS;
}

/* End a range of any kind and return what it was charged. */
CUresult sim_free(struct sim_range *range)
{
    struct sim_device *device = sim_device[range->device];
    if (range->kind == SIM_RANGE_SLAB)
        sim_slab_end(range);
    if (range->kind == SIM_RANGE_RESERVED)
        TRY(sim_vmm_end(range));
    if (range->kind == SIM_RANGE_GRAPH) { /* the addresses stay with the graph that allocates there */
        if (range->charged_bytes)
            sim_pool_give(&device->graph_pool, range->charged_bytes);
        range->charged_bytes = 0;
        return CUDA_SUCCESS;
    }
    if (range->resident_bytes)
        sim_refund(device, HW_MANAGED, range->resident_bytes);
    if (range->pool)
        sim_pool_give(range->pool, range->charged_bytes);
    else if (range->object)
        TRY(sim_unshare(device, range));
    else if (range->charged_bytes)
        sim_refund(device, range->hw_kind, range->charged_bytes);
    if (range->kind == SIM_RANGE_MANAGED) {
        CARD_LOCKED(device);
        hw_put(device->card, &device->client->managed_bytes, device->client->managed_bytes - range->bytes);
    }
    sim_range_end(range);
    return CUDA_SUCCESS;
}

/* Take `bytes` of the card as a range of its own. */
static CUresult take(struct sim_context *context, uint64_t bytes, CUdeviceptr *pointer)
{
    struct sim_device *device = sim_device_of(context);
    uint64_t whole = sim_round(bytes, sim_params()->granule_bytes);
    TRY(sim_charge(device, HW_DATA, whole));
    struct sim_range *range = sim_range_new(SIM_RANGE_DATA, context, bytes);
    if (!range) {
        sim_refund(device, HW_DATA, whole);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    range->charged_bytes = whole;
    range->hw_kind = HW_DATA;
    *pointer = range->base;
    return CUDA_SUCCESS;
}

API CUresult cuMemAlloc_v2(CUdeviceptr *pointer, size_t bytes)
{
    ENTER();
    struct sim_context *context;
    TRY(sim_current(&context));
    if (!pointer || !bytes)
        return CUDA_ERROR_INVALID_VALUE;
    LOCKED();
    TRY(sim_device_error(sim_device_of(context)));
    return bytes <= SIM_BLOCK / 2 ? sim_slab_take(context, bytes, pointer) : take(context, bytes, pointer);
}

API CUresult cuMemAlloc(CUdeviceptr *pointer, size_t bytes)
{
    return cuMemAlloc_v2(pointer, bytes);
}

API CUresult cuMemAllocPitch_v2(CUdeviceptr *pointer, size_t *pitch, size_t width, size_t height, unsigned element)
{
    if (!pitch || !width || !height || (element != 4 && element != 8 && element != 16))
        return CUDA_ERROR_INVALID_VALUE;
    *pitch = sim_round(width, 512);
    return cuMemAlloc_v2(pointer, *pitch * height);
}

API CUresult cuMemAllocPitch(CUdeviceptr *pointer, size_t *pitch, size_t width, size_t height, unsigned element)
{
    return cuMemAllocPitch_v2(pointer, pitch, width, height, element);
}

/* A pointer that cuMemFree may be given. */
static CUresult freeable(CUdeviceptr pointer, struct sim_range **range)
{
    CUdeviceptr base;
    uint64_t bytes;
    TRY(sim_extent(pointer, &base, &bytes, range));
    int imported = (*range)->kind == SIM_RANGE_IMPORT && (*range)->pool; /* from a pool of another process */
    return base != pointer || ((*range)->kind > SIM_RANGE_MANAGED && !imported) ? CUDA_ERROR_INVALID_VALUE
                                                                                : CUDA_SUCCESS;
}

/* Free waits for the device first, as the real one does: the memory may still be in use. */
API CUresult cuMemFree_v2(CUdeviceptr pointer)
{
    ENTER();
    struct sim_context *context;
    struct sim_range *range;
    if (!pointer)
        return CUDA_SUCCESS;
    TRY(sim_current(&context));
    struct sim_device *device;
    {
        LOCKED();
        TRY(freeable(pointer, &range));
        device = sim_device[range->device];
    }
    if (device->client->busy_lanes)
        sim_wait_context(device);
    LOCKED();
    TRY(freeable(pointer, &range)); /* another thread may have freed it meanwhile */
    return range->kind == SIM_RANGE_SLAB ? sim_slab_give(range, pointer) : sim_free(range);
}

API CUresult cuMemFree(CUdeviceptr pointer)
{
    return cuMemFree_v2(pointer);
}

API CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes)
{
    ENTER();
    struct sim_context *context;
    TRY(sim_current(&context));
    if (!free_bytes || !total_bytes)
        return CUDA_ERROR_INVALID_VALUE;
    struct sim_device *device = sim_device_of(context);
    uint64_t total;
    CARD_LOCKED(device);
    TRY(sim_device_error(device));
    *free_bytes = hw_free_bytes(&sim_hw, device->card, device->client, &total);
    *total_bytes = total;
    return CUDA_SUCCESS;
}

API CUresult cuMemGetInfo(size_t *free_bytes, size_t *total_bytes)
{
    return cuMemGetInfo_v2(free_bytes, total_bytes);
}

API CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *bytes, CUdeviceptr pointer)
{
    ENTER();
    CUdeviceptr from;
    uint64_t size;
    struct sim_range *range;
    LOCKED();
    if (sim_extent(pointer, &from, &size, &range))
        return CUDA_ERROR_NOT_FOUND;
    if (base)
        *base = from;
    if (bytes)
        *bytes = size;
    return CUDA_SUCCESS;
}

API CUresult cuMemGetAddressRange(CUdeviceptr *base, size_t *bytes, CUdeviceptr pointer)
{
    return cuMemGetAddressRange_v2(base, bytes, pointer);
}

API CUresult cuMemAllocManaged(CUdeviceptr *pointer, size_t bytes, unsigned flags)
{
    ENTER();
    struct sim_context *context;
    TRY(sim_current(&context));
    if (!pointer || !bytes || flags < 1 || flags > 2)
        return CUDA_ERROR_INVALID_VALUE;
    LOCKED();
    struct sim_device *device = sim_device_of(context);
    TRY(sim_device_error(device));
    struct sim_range *range = sim_range_new(SIM_RANGE_MANAGED, context, bytes);
    if (!range)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *pointer = range->base;
    CARD_LOCKED(device);
    hw_put(device->card, &device->client->managed_bytes, device->client->managed_bytes + bytes);
    return CUDA_SUCCESS;
}

/* Move managed memory to a card (as far as it has room) or to the host. */
static CUresult prefetch(CUdeviceptr pointer, uint64_t bytes, int to_device, int index, void *handle)
{
    ENTER();
    struct sim_stream *stream;
    TRY(sim_stream_of(handle, &stream));
    LOCKED();
    struct sim_range *range = sim_range_at(pointer);
    struct sim_device *device;
    if (!range || range->kind != SIM_RANGE_MANAGED || !bytes)
        return CUDA_ERROR_INVALID_VALUE;
    if (to_device)
        TRY(sim_check_device(index, &device));
    device = sim_device[range->device];
    if (!to_device) {
        sim_refund(device, HW_MANAGED, range->resident_bytes);
        range->resident_bytes = 0;
        return CUDA_SUCCESS;
    }
    uint64_t whole = sim_round(range->bytes, sim_params()->granule_bytes);
    uint64_t more = sim_round(bytes, sim_params()->granule_bytes);
    more = range->resident_bytes + more > whole ? whole - range->resident_bytes : more;
    if (more && !sim_charge(device, HW_MANAGED, more))
        range->resident_bytes += more; /* without room it stays where it is, and no error tells */
    return CUDA_SUCCESS;
}

API CUresult cuMemPrefetchAsync_v2(CUdeviceptr pointer, size_t bytes, struct cu_location to, unsigned flags,
                                   void *stream)
{
    (void)flags;
    return prefetch(pointer, bytes, to.type == CU_MEM_LOCATION_DEVICE, to.id, stream);
}

API CUresult cuMemPrefetchAsync(CUdeviceptr pointer, size_t bytes, CUdevice device, void *stream)
{
    return prefetch(pointer, bytes, device >= 0, device, stream);
}

/* Advice about managed memory is taken and has no effect. */
API CUresult cuMemAdvise_v2(CUdeviceptr pointer, size_t bytes, int advice, struct cu_location location)
{
    ENTER();
    (void)advice, (void)location;
    LOCKED();
    struct sim_range *range = sim_range_at(pointer);
    return range && range->kind == SIM_RANGE_MANAGED && bytes ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

API CUresult cuMemAdvise(CUdeviceptr pointer, size_t bytes, int advice, CUdevice device)
{
    return cuMemAdvise_v2(pointer, bytes, advice, (struct cu_location){1, device});
}
