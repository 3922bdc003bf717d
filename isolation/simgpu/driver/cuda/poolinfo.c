/* SPDX-License-Identifier: Apache-2.0 */
/* Attributes of memory pools, which pool is a device's own, and the pool of its graphs.
 * Return convention: CUresult. */
#define _GNU_SOURCE
#include "context.h"
#include "device.h"
#include "memory.h"
#include "pool.h"
#include "sim.h"

#include <sys/mman.h>
#include <unistd.h>

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
    case 9: *(int *)value = pool->type; break;
    case 10: *(int *)value = pool->handle_types; break;
    case 11: *(int *)value = pool->location.id; break;
    case 12: *(int *)value = pool->location.type; break;
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

/* The pools of memory that is not a device's own: of the host, and managed memory by its preferred place. */
static struct sim_pool *elsewhere(const struct cu_location *location, int type, struct sim_pool ***current)
{
    static struct sim_pool pools[2][SIM_MAX_DEVICES + 2], *now[2][SIM_MAX_DEVICES + 2];
    struct sim_pool placed;
    if (!location || sim_params()->cuda_version < 13000 || sim_pool_place(&placed, location, type))
        return NULL;
    int at = location->type == CU_MEM_LOCATION_DEVICE ? location->id : SIM_MAX_DEVICES + (location->type != 0);
    struct sim_pool *pool = &pools[type == CU_MEM_MANAGED][at];
    if (!pool->tag) {
        *pool = placed;
        pool->is_default = 1;
        now[type == CU_MEM_MANAGED][at] = pool;
    }
    *current = &now[type == CU_MEM_MANAGED][at];
    return pool;
}

static int of_device(const struct cu_location *location, int type)
{
    return location && location->type == CU_MEM_LOCATION_DEVICE && type == CU_MEM_PINNED;
}

static CUresult pool_at(struct sim_pool **pool, const struct cu_location *location, int type, int current)
{
    ENTER();
    struct sim_pool **now;
    if (of_device(location, type))
        return device_pool(pool, location->id, current);
    LOCKED();
    struct sim_pool *found = elsewhere(location, type, &now);
    if (!found || !pool)
        return CUDA_ERROR_INVALID_VALUE;
    *pool = current ? *now : found;
    return CUDA_SUCCESS;
}

API CUresult cuMemGetDefaultMemPool(struct sim_pool **pool, const struct cu_location *location, int type)
{
    return pool_at(pool, location, type, 0);
}

API CUresult cuMemGetMemPool(struct sim_pool **pool, const struct cu_location *location, int type)
{
    return pool_at(pool, location, type, 1);
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
    ENTER();
    struct sim_pool *pool = sim_pool_check(handle), **now;
    if (of_device(location, type))
        return cuDeviceSetMemPool(location->id, handle);
    LOCKED();
    if (!pool || pool->type != type || !elsewhere(location, type, &now) || pool->location.type != location->type)
        return CUDA_ERROR_INVALID_VALUE;
    *now = pool;
    return CUDA_SUCCESS;
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

struct exported { /* CUmemPoolPtrExportData: 64 bytes, opaque; and what stands in a pool's descriptor */
    uint64_t magic, card, process, bytes, spare[4];
};
_Static_assert(sizeof(struct exported) == 64, "CUmemPoolPtrExportData is 64 bytes");

#define POOL_MAGIC 0x4C4F4F5055504753ull

/* A pool of device memory that was made to be shared, as a descriptor. */
API CUresult cuMemPoolExportToShareableHandle(void *out, void *handle, int type, unsigned long long flags)
{
    ENTER();
    LOCKED();
    struct sim_pool *pool = sim_pool_check(handle);
    if (!out || !pool || flags || pool->imported || type != CU_MEM_HANDLE_POSIX_FD || !(pool->handle_types & type))
        return CUDA_ERROR_INVALID_VALUE;
    struct exported data = {.magic = POOL_MAGIC, .card = (uint64_t)sim_device[pool->device]->index,
                            .process = (uint64_t)getpid()};
    int fd = memfd_create("simgpu-pool", MFD_CLOEXEC);
    if (fd < 0 || write(fd, &data, sizeof data) != (ssize_t)sizeof data)
        return CUDA_ERROR_OPERATING_SYSTEM;
    *(int *)out = fd;
    return CUDA_SUCCESS;
}

/* The device that this process sees as that card, or -1. */
static int device_at(uint64_t card)
{
    for (int i = 0; i < sim_devices; i++)
        if ((uint64_t)sim_device[i]->index == card)
            return i;
    return -1;
}

API CUresult cuMemPoolImportFromShareableHandle(struct sim_pool **pool, void *handle, int type,
                                                unsigned long long flags)
{
    ENTER();
    LOCKED();
    struct exported data;
    if (!pool || flags || type != CU_MEM_HANDLE_POSIX_FD ||
        pread((int)(intptr_t)handle, &data, sizeof data, 0) != (ssize_t)sizeof data || data.magic != POOL_MAGIC ||
        device_at(data.card) < 0)
        return CUDA_ERROR_INVALID_VALUE;
    struct sim_pool placed;
    sim_pool_init(&placed, device_at(data.card), HW_POOL);
    placed.imported = 1;
    placed.counted = 0;
    return sim_pool_new(pool, &placed, 0, 0);
}

/* Memory of a shared pool, for another process to map. It is not kept alive by that: who frees it while others map it
 * breaks the rules. */
API CUresult cuMemPoolExportPointer(struct exported *data, CUdeviceptr pointer)
{
    ENTER();
    LOCKED();
    struct sim_range *range = sim_range_at(pointer);
    if (!data || !range || range->kind != SIM_RANGE_POOL || range->base != pointer || !range->pool->handle_types)
        return CUDA_ERROR_INVALID_VALUE;
    *data = (struct exported){.magic = POOL_MAGIC, .card = (uint64_t)sim_device[range->device]->index,
                              .process = (uint64_t)getpid(), .bytes = range->bytes};
    return CUDA_SUCCESS;
}

API CUresult cuMemPoolImportPointer(CUdeviceptr *pointer, void *handle, const struct exported *data)
{
    ENTER();
    struct sim_context *context;
    TRY(sim_current(&context));
    LOCKED();
    struct sim_pool *pool = sim_pool_check(handle);
    if (!pointer || !data || data->magic != POOL_MAGIC || !pool || !pool->imported || !data->bytes)
        return CUDA_ERROR_INVALID_VALUE;
    struct sim_range *range = sim_range_new(SIM_RANGE_IMPORT, context, data->bytes);
    if (!range)
        return CUDA_ERROR_MAP_FAILED;
    range->pool = pool;
    *pointer = range->base;
    return CUDA_SUCCESS;
}
