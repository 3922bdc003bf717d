/* SPDX-License-Identifier: Apache-2.0 */
/* Virtual memory management: physical handles that live until the last handle reference, exported
 * descriptor and mapping is gone.
 * Return convention: CUresult. */
#define _GNU_SOURCE
#include "device.h"
#include "memory.h"
#include "sim.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

struct sim_physical {
    uint32_t tag;
    int device, counted;
    uint64_t bytes, charged_bytes;
    uint64_t references, mappings;
    uint64_t object, generation; /* entry + 1 of the card's table where it can be exported */
    struct cu_allocation prop;
};

static struct sim_physical *physical_of(uint64_t handle)
{
    struct sim_physical *physical = (struct sim_physical *)handle;
    return physical && physical->tag == SIM_PHYSICAL ? physical : NULL;
}

/* The last reference may have gone: give the bytes back. */
static void end_if_unused(struct sim_physical *physical)
{
    if (physical->references || physical->mappings)
        return;
    struct sim_device *device = sim_device[physical->device];
    if (physical->object) {
        CARD_LOCKED(device);
        hw_drop(&sim_hw, device->card, device->client, physical->object - 1);
    } else if (physical->charged_bytes) {
        sim_refund(device, HW_VMM, physical->charged_bytes);
    }
    physical->tag = SIM_DEAD;
}

/* The granules [at, at + bytes) of a reservation, as indices of its map; 0 if they are not inside one. */
static int granules(CUdeviceptr at, uint64_t bytes, struct sim_range **range, uint64_t *first, uint64_t *count)
{
    *range = sim_range_at(at);
    if (!*range || (*range)->kind != SIM_RANGE_RESERVED || at % SIM_BLOCK || !bytes || bytes % SIM_BLOCK)
        return 0;
    *first = (at - (*range)->base) / SIM_BLOCK;
    *count = bytes / SIM_BLOCK;
    return *first + *count <= (*range)->blocks;
}

API CUresult cuMemAddressReserve(CUdeviceptr *pointer, size_t bytes, size_t alignment, CUdeviceptr wish,
                                 unsigned long long flags)
{
    ENTER();
    (void)wish;
    if (!pointer || !bytes || bytes % SIM_BLOCK || flags || alignment & (alignment - 1))
        return CUDA_ERROR_INVALID_VALUE;
    LOCKED();
    struct sim_range *range = sim_range_new(SIM_RANGE_RESERVED, NULL, bytes);
    if (!range)
        return CUDA_ERROR_OUT_OF_MEMORY;
    range->map = calloc(range->blocks, sizeof *range->map);
    *pointer = range->base;
    return range->map ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

API CUresult cuMemAddressFree(CUdeviceptr pointer, size_t bytes)
{
    ENTER();
    LOCKED();
    struct sim_range *range = sim_range_at(pointer);
    if (!range || range->kind != SIM_RANGE_RESERVED || range->base != pointer || range->bytes != bytes)
        return CUDA_ERROR_INVALID_VALUE;
    for (uint64_t i = 0; i < range->blocks; i++)
        if (range->map[i])
            return CUDA_ERROR_INVALID_VALUE;
    sim_range_end(range);
    return CUDA_SUCCESS;
}

/* Charge a new physical allocation; one that may be exported becomes an entry of the card's table. */
static CUresult back(struct sim_physical *physical)
{
    struct sim_device *device = sim_device[physical->device];
    uint64_t whole = sim_round(physical->bytes, sim_params()->granule_bytes);
    TRY(sim_charge(device, HW_VMM, whole));
    physical->charged_bytes = whole;
    if (!(physical->prop.handle_types & CU_MEM_HANDLE_POSIX_FD))
        return CUDA_SUCCESS;
    CARD_LOCKED(device);
    int object = hw_share(device->card, device->client, HW_VMM, whole);
    if (object < 0) {
        hw_refund(&sim_hw, device->card, device->client, HW_VMM, whole);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    physical->object = (uint64_t)object + 1;
    physical->generation = device->card->object[object].generation;
    return CUDA_SUCCESS;
}

API CUresult cuMemCreate(uint64_t *handle, size_t bytes, const struct cu_allocation *prop, unsigned long long flags)
{
    ENTER();
    struct sim_device *device;
    if (!handle || !prop || !bytes || bytes % SIM_BLOCK || flags || prop->type != 1)
        return CUDA_ERROR_INVALID_VALUE;
    if (prop->handle_types & ~CU_MEM_HANDLE_POSIX_FD)
        return CUDA_ERROR_NOT_SUPPORTED;
    int on_device = prop->location.type == CU_MEM_LOCATION_DEVICE;
    if (on_device)
        TRY(sim_check_device(prop->location.id, &device));
    if (on_device)
        TRY(sim_client(device));
    LOCKED();
    struct sim_physical *physical = sim_new(sizeof *physical);
    *physical = (struct sim_physical){.tag = SIM_PHYSICAL, .device = on_device ? prop->location.id : 0,
                                      .counted = on_device, .bytes = bytes, .references = 1, .prop = *prop};
    CUresult result = on_device ? back(physical) : CUDA_SUCCESS;
    if (result)
        free(physical);
    else
        *handle = (uint64_t)physical;
    return result;
}

API CUresult cuMemRelease(uint64_t handle)
{
    ENTER();
    LOCKED();
    struct sim_physical *physical = physical_of(handle);
    if (!physical || !physical->references)
        return CUDA_ERROR_INVALID_VALUE;
    physical->references--;
    end_if_unused(physical);
    return CUDA_SUCCESS;
}

API CUresult cuMemMap(CUdeviceptr at, size_t bytes, size_t offset, uint64_t handle, unsigned long long flags)
{
    ENTER();
    LOCKED();
    struct sim_physical *physical = physical_of(handle);
    struct sim_range *range;
    uint64_t first, count;
    if (!physical || flags || offset % SIM_BLOCK || offset + bytes > physical->bytes)
        return CUDA_ERROR_INVALID_VALUE;
    if (!granules(at, bytes, &range, &first, &count))
        return CUDA_ERROR_INVALID_VALUE;
    for (uint64_t i = first; i < first + count; i++)
        if (range->map[i])
            return CUDA_ERROR_INVALID_VALUE;
    for (uint64_t i = first; i < first + count; i++)
        range->map[i] = physical;
    physical->mappings += count;
    return CUDA_SUCCESS;
}

/* Take the mapping of some granules away. */
static void unmap(struct sim_range *range, uint64_t first, uint64_t count)
{
    for (uint64_t i = first; i < first + count; i++) {
        struct sim_physical *physical = range->map[i];
        range->map[i] = NULL;
        if (physical) {
            physical->mappings--;
            end_if_unused(physical);
        }
    }
    if (range->touched)
        madvise((void *)(range->base + first * SIM_BLOCK), count * SIM_BLOCK, MADV_DONTNEED);
}

/* A reservation ends with all its mappings. */
CUresult sim_vmm_end(struct sim_range *range)
{
    unmap(range, 0, range->blocks);
    return CUDA_SUCCESS;
}

API CUresult cuMemUnmap(CUdeviceptr at, size_t bytes)
{
    ENTER();
    LOCKED();
    struct sim_range *range;
    uint64_t first, count;
    if (!granules(at, bytes, &range, &first, &count))
        return CUDA_ERROR_INVALID_VALUE;
    for (uint64_t i = first; i < first + count; i++)
        if (!range->map[i])
            return CUDA_ERROR_INVALID_VALUE;
    unmap(range, first, count);
    return CUDA_SUCCESS;
}

API CUresult cuMemSetAccess(CUdeviceptr at, size_t bytes, const struct cu_access *access, size_t entries)
{
    ENTER();
    LOCKED();
    struct sim_range *range;
    uint64_t first, count;
    if (!access || !entries || !granules(at, bytes, &range, &first, &count))
        return CUDA_ERROR_INVALID_VALUE;
    for (uint64_t i = first; i < first + count; i++)
        if (!range->map[i])
            return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS;
}

API CUresult cuMemGetAccess(unsigned long long *flags, const struct cu_location *location, CUdeviceptr at)
{
    ENTER();
    LOCKED();
    struct sim_range *range = sim_range_at(at);
    if (!flags || !location || !range || range->kind != SIM_RANGE_RESERVED)
        return CUDA_ERROR_INVALID_VALUE;
    *flags = range->map[(at - range->base) / SIM_BLOCK] ? 3 : 0;
    return CUDA_SUCCESS;
}

API CUresult cuMemGetAllocationGranularity(size_t *granularity, const struct cu_allocation *prop, int option)
{
    ENTER();
    if (!granularity || !prop || option < 0 || option > 1)
        return CUDA_ERROR_INVALID_VALUE;
    *granularity = SIM_BLOCK;
    return CUDA_SUCCESS;
}

API CUresult cuMemGetAllocationPropertiesFromHandle(struct cu_allocation *prop, uint64_t handle)
{
    ENTER();
    struct sim_physical *physical = physical_of(handle);
    if (!prop || !physical)
        return CUDA_ERROR_INVALID_VALUE;
    *prop = physical->prop;
    return CUDA_SUCCESS;
}

API CUresult cuMemRetainAllocationHandle(uint64_t *handle, void *address)
{
    ENTER();
    LOCKED();
    struct sim_range *range = sim_range_at((CUdeviceptr)address);
    if (!handle || !range || range->kind != SIM_RANGE_RESERVED)
        return CUDA_ERROR_INVALID_VALUE;
    struct sim_physical *physical = range->map[((CUdeviceptr)address - range->base) / SIM_BLOCK];
    if (!physical)
        return CUDA_ERROR_INVALID_VALUE;
    physical->references++;
    *handle = (uint64_t)physical;
    return CUDA_SUCCESS;
}

/* The exported descriptor is an open file of the hardware whose position names the object and whose
 * lock keeps it alive wherever the descriptor is passed to, until the last copy is closed. */
API CUresult cuMemExportToShareableHandle(void *out, uint64_t handle, int type, unsigned long long flags)
{
    ENTER();
    LOCKED();
    struct sim_physical *physical = physical_of(handle);
    if (!out || !physical || flags || type != CU_MEM_HANDLE_POSIX_FD || !physical->object)
        return CUDA_ERROR_INVALID_VALUE;
    uint64_t card = (uint64_t)sim_device[physical->device]->index, object = physical->object - 1;
    int fd = open(sim_hw.path, O_RDWR | O_CLOEXEC);
    struct flock lock = {.l_type = F_RDLCK, .l_whence = SEEK_SET, .l_len = 1,
                         .l_start = (off_t)(HW_LOCK_EXPORT + card * HW_OBJECTS + object)};
    uint64_t name = 1ull << 62 | (physical->generation & 0xFFFFFFFF) << 24 | card << 16 | object;
    if (fd < 0 || fcntl(fd, F_OFD_SETLK, &lock) || lseek(fd, (off_t)name, SEEK_SET) < 0) {
        if (fd >= 0)
            close(fd);
        return CUDA_ERROR_OPERATING_SYSTEM;
    }
    *(int *)out = fd;
    return CUDA_SUCCESS;
}

/* The visible device on this card, or -1. */
static int device_on(uint64_t card)
{
    for (int i = 0; i < sim_devices; i++)
        if ((uint64_t)sim_device[i]->index == card)
            return i;
    return -1;
}

API CUresult cuMemImportFromShareableHandle(uint64_t *handle, void *os_handle, int type)
{
    ENTER();
    if (!handle || type != CU_MEM_HANDLE_POSIX_FD)
        return CUDA_ERROR_INVALID_VALUE;
    off_t at = lseek((int)(intptr_t)os_handle, 0, SEEK_CUR);
    uint64_t name = at < 0 ? 0 : (uint64_t)at, card = name >> 16 & 0xFF, object = name & 0xFFFF;
    int index = name >> 62 ? device_on(card) : -1;
    if (index < 0 || object >= HW_OBJECTS)
        return CUDA_ERROR_INVALID_VALUE;
    struct sim_device *device = sim_device[index];
    TRY(sim_client(device));
    LOCKED();
    struct sim_physical *physical = sim_new(sizeof *physical);
    CARD_LOCKED(device);
    uint64_t generation = device->card->object[object].generation;
    if ((generation & 0xFFFFFFFF) != (name >> 24 & 0xFFFFFFFF) ||
        hw_hold(&sim_hw, device->card, device->client, object, generation)) {
        free(physical);
        return CUDA_ERROR_INVALID_VALUE;
    }
    uint64_t bytes = device->card->object[object].bytes;
    *physical = (struct sim_physical){.tag = SIM_PHYSICAL, .device = index, .counted = 1, .bytes = bytes,
                                      .references = 1, .object = object + 1, .generation = generation,
                                      .prop = {.type = 1, .handle_types = 1, .location = {1, index}}};
    *handle = (uint64_t)physical;
    return CUDA_SUCCESS;
}
