/* Attributes of memory pools, which pool is a device's own, and the pool of its graphs.
 * Return convention: CUresult. */
#include "sim.h"

enum { /* CUmemPool_attribute */
    KEEP = 4,
    RESERVED_NOW,
    RESERVED_HIGH,
    USED_NOW,
    USED_HIGH,
    LAST_ATTRIBUTE = 15,
};

API CUresult cuMemPoolTrimTo(void *handle, size_t keep)
{
    ENTER();
    LOCKED();
    struct sim_pool *pool = sim_pool_check(handle);
    if (!pool)
        return CUDA_ERROR_INVALID_VALUE;
    sim_pool_trim(pool, keep);
    return CUDA_SUCCESS;
}

API CUresult cuMemPoolSetAttribute(void *handle, int attribute, void *value)
{
    ENTER();
    LOCKED();
    struct sim_pool *pool = sim_pool_check(handle);
    if (!pool || !value || attribute < 1 || attribute > USED_HIGH)
        return CUDA_ERROR_INVALID_VALUE;
    if (attribute < KEEP)
        pool->flags[attribute] = (uint64_t)*(int *)value;
    else if (attribute == KEEP)
        pool->keep_bytes = *(uint64_t *)value;
    else if (attribute == RESERVED_HIGH && !*(uint64_t *)value)
        pool->reserved_high = pool->reserved_bytes;
    else if (attribute == USED_HIGH && !*(uint64_t *)value)
        pool->used_high = pool->used_bytes;
    else
        return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS;
}

API CUresult cuMemPoolGetAttribute(void *handle, int attribute, void *value)
{
    ENTER();
    LOCKED();
    struct sim_pool *pool = sim_pool_check(handle);
    if (!pool || !value || attribute < 1 || attribute > LAST_ATTRIBUTE)
        return CUDA_ERROR_INVALID_VALUE;
    switch (attribute) {
    case KEEP: *(uint64_t *)value = pool->keep_bytes; break;
    case RESERVED_NOW: *(uint64_t *)value = pool->reserved_bytes; break;
    case RESERVED_HIGH: *(uint64_t *)value = pool->reserved_high; break;
    case USED_NOW: *(uint64_t *)value = pool->used_bytes; break;
    case USED_HIGH: *(uint64_t *)value = pool->used_high; break;
    case 9: *(int *)value = 1; break;
    case 10: *(int *)value = pool->handle_types; break;
    case 11: *(int *)value = pool->device; break;
    case 12: *(int *)value = pool->counted ? CU_MEM_LOCATION_DEVICE : 2; break;
    case 13: *(uint64_t *)value = pool->max_bytes; break;
    default: *(int *)value = attribute < KEEP ? (int)pool->flags[attribute] : 0;
    }
    return CUDA_SUCCESS;
}

API CUresult cuMemPoolSetAccess(void *handle, const struct cu_access *access, size_t count)
{
    ENTER();
    return sim_pool_check(handle) && (access || !count) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

API CUresult cuMemPoolGetAccess(int *flags, void *handle, const struct cu_location *location)
{
    ENTER();
    struct sim_pool *pool = sim_pool_check(handle);
    if (!flags || !pool || !location)
        return CUDA_ERROR_INVALID_VALUE;
    *flags = location->id == pool->device ? 3 : 0;
    return CUDA_SUCCESS;
}

/* The device's own pool: it makes the device usable without a context of the caller's. */
static CUresult device_pool(struct sim_pool **pool, CUdevice index, int current)
{
    ENTER();
    struct sim_device *device;
    TRY(sim_check_device(index, &device));
    if (!pool)
        return CUDA_ERROR_INVALID_VALUE;
    *pool = current ? device->current_pool : &device->pool;
    return CUDA_SUCCESS;
}

API CUresult cuDeviceGetDefaultMemPool(struct sim_pool **pool, CUdevice index)
{
    return device_pool(pool, index, 0);
}

API CUresult cuDeviceGetMemPool(struct sim_pool **pool, CUdevice index)
{
    return device_pool(pool, index, 1);
}

API CUresult cuMemGetDefaultMemPool(struct sim_pool **pool, const struct cu_location *location, int type)
{
    if (!location || location->type != CU_MEM_LOCATION_DEVICE || type != 1)
        return CUDA_ERROR_NOT_SUPPORTED;
    return device_pool(pool, location->id, 0);
}

API CUresult cuMemGetMemPool(struct sim_pool **pool, const struct cu_location *location, int type)
{
    if (!location || location->type != CU_MEM_LOCATION_DEVICE || type != 1)
        return CUDA_ERROR_NOT_SUPPORTED;
    return device_pool(pool, location->id, 1);
}

API CUresult cuDeviceSetMemPool(CUdevice index, void *handle)
{
    ENTER();
    struct sim_device *device;
    TRY(sim_check_device(index, &device));
    LOCKED();
    struct sim_pool *pool = sim_pool_check(handle);
    if (!pool || pool->device != index)
        return CUDA_ERROR_INVALID_VALUE;
    device->current_pool = pool;
    return CUDA_SUCCESS;
}

API CUresult cuMemSetMemPool(const struct cu_location *location, int type, void *handle)
{
    if (!location || location->type != CU_MEM_LOCATION_DEVICE || type != 1)
        return CUDA_ERROR_NOT_SUPPORTED;
    return cuDeviceSetMemPool(location->id, handle);
}

API CUresult cuDeviceGraphMemTrim(CUdevice index)
{
    ENTER();
    struct sim_device *device;
    TRY(sim_check_device(index, &device));
    LOCKED();
    if (device->client)
        sim_pool_trim(&device->graph_pool, 0);
    return CUDA_SUCCESS;
}

API CUresult cuDeviceGetGraphMemAttribute(CUdevice index, int attribute, void *value)
{
    ENTER();
    struct sim_device *device;
    TRY(sim_check_device(index, &device));
    LOCKED();
    const struct sim_pool *pool = &device->graph_pool;
    const uint64_t figures[] = {pool->used_bytes, pool->used_high, pool->reserved_bytes, pool->reserved_high};
    if (!value || attribute < 0 || attribute > 3)
        return CUDA_ERROR_INVALID_VALUE;
    *(uint64_t *)value = figures[attribute];
    return CUDA_SUCCESS;
}

API CUresult cuDeviceSetGraphMemAttribute(CUdevice index, int attribute, void *value)
{
    ENTER();
    struct sim_device *device;
    TRY(sim_check_device(index, &device));
    LOCKED();
    if (!value || *(uint64_t *)value || (attribute != 1 && attribute != 3))
        return CUDA_ERROR_INVALID_VALUE;
    if (attribute == 1)
        device->graph_pool.used_high = device->graph_pool.used_bytes;
    else
        device->graph_pool.reserved_high = device->graph_pool.reserved_bytes;
    return CUDA_SUCCESS;
}
