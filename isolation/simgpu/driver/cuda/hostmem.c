/* SPDX-License-Identifier: Apache-2.0 */
/* Pinned host memory, and what can be asked of any pointer.
 * Return convention: CUresult. */
#include "context.h"
#include "memory.h"
#include "sim.h"

#include <stdlib.h>
#include <string.h>

struct registered {
    char *base;
    size_t bytes;
    unsigned flags;
    struct registered *next;
};
static struct registered *registrations;

API CUresult cuMemHostAlloc(void **pointer, size_t bytes, unsigned flags)
{
    ENTER();
    struct sim_context *context;
    TRY(sim_current(&context));
    if (!pointer || !bytes)
        return CUDA_ERROR_INVALID_VALUE;
    LOCKED();
    struct sim_range *range = sim_range_new(SIM_RANGE_HOST, context, bytes);
    if (!range)
        return CUDA_ERROR_OUT_OF_MEMORY;
    range->touched = 1;
    range->generation = flags;
    *pointer = (void *)range->base;
    return CUDA_SUCCESS;
}

API CUresult cuMemAllocHost_v2(void **pointer, size_t bytes)
{
    return cuMemHostAlloc(pointer, bytes, 0);
}

API CUresult cuMemAllocHost(void **pointer, size_t bytes)
{
    return cuMemHostAlloc(pointer, bytes, 0);
}

API CUresult cuMemFreeHost(void *pointer)
{
    ENTER();
    LOCKED();
    struct sim_range *range = sim_range_at((CUdeviceptr)pointer);
    if (!range || range->kind != SIM_RANGE_HOST || range->base != (CUdeviceptr)pointer)
        return CUDA_ERROR_INVALID_VALUE;
    sim_range_end(range);
    return CUDA_SUCCESS;
}

/* The registration that covers a pointer, or NULL. */
static struct registered **registration_of(const void *pointer)
{
    struct registered **at = &registrations;
    while (*at && ((char *)pointer < (*at)->base || (char *)pointer >= (*at)->base + (*at)->bytes))
        at = &(*at)->next;
    return at;
}

API CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *device, void *pointer, unsigned flags)
{
    ENTER();
    LOCKED();
    struct sim_range *range = sim_range_at((CUdeviceptr)pointer);
    if (!device || flags || !((range && range->kind == SIM_RANGE_HOST) || *registration_of(pointer)))
        return CUDA_ERROR_INVALID_VALUE;
    *device = (CUdeviceptr)pointer;
    return CUDA_SUCCESS;
}

API CUresult cuMemHostGetDevicePointer(CUdeviceptr *device, void *pointer, unsigned flags)
{
    return cuMemHostGetDevicePointer_v2(device, pointer, flags);
}

API CUresult cuMemHostGetFlags(unsigned *flags, void *pointer)
{
    ENTER();
    LOCKED();
    struct sim_range *range = sim_range_at((CUdeviceptr)pointer);
    if (!flags || !range || range->kind != SIM_RANGE_HOST)
        return CUDA_ERROR_INVALID_VALUE;
    *flags = (unsigned)range->generation;
    return CUDA_SUCCESS;
}

API CUresult cuMemHostRegister_v2(void *pointer, size_t bytes, unsigned flags)
{
    ENTER();
    if (!pointer || !bytes)
        return CUDA_ERROR_INVALID_VALUE;
    LOCKED();
    if (*registration_of(pointer))
        return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
    struct registered *entry = sim_new(sizeof *entry);
    *entry = (struct registered){pointer, bytes, flags, registrations};
    registrations = entry;
    return CUDA_SUCCESS;
}

API CUresult cuMemHostRegister(void *pointer, size_t bytes, unsigned flags)
{
    return cuMemHostRegister_v2(pointer, bytes, flags);
}

API CUresult cuMemHostUnregister(void *pointer)
{
    ENTER();
    LOCKED();
    struct registered **at = registration_of(pointer), *entry = *at;
    if (!entry || entry->base != pointer)
        return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
    *at = entry->next;
    free(entry);
    return CUDA_SUCCESS;
}

/* One attribute of a pointer into `data`; CUDA_ERROR_INVALID_VALUE for pointers of nobody. */
static CUresult attribute_of(void *data, int attribute, CUdeviceptr pointer)
{
    CUdeviceptr base;
    uint64_t bytes;
    struct sim_range *range;
    TRY(sim_extent(pointer, &base, &bytes, &range));
    int host = range->kind == SIM_RANGE_HOST;
    switch (attribute) {
    case 1: *(void **)data = range->context; break;
    case 2: *(unsigned *)data = host ? CU_MEMORY_HOST : CU_MEMORY_DEVICE; break;
    case 3: *(CUdeviceptr *)data = pointer; break;
    case 4:
        if (!host && range->kind != SIM_RANGE_MANAGED)
            return CUDA_ERROR_INVALID_VALUE;
        *(void **)data = (void *)pointer;
        break;
    case 6: *(int *)data = 0; break;
    case 7: *(uint64_t *)data = range->id; break;
    case 8: *(int *)data = range->kind == SIM_RANGE_MANAGED; break;
    case 9: *(int *)data = range->device; break;
    case 10: *(int *)data = range->kind == SIM_RANGE_DATA || range->kind == SIM_RANGE_SLAB; break;
    case 11: *(CUdeviceptr *)data = base; break;
    case 12: *(size_t *)data = bytes; break;
    case 13: *(int *)data = 1; break;
    case 14: *(uint64_t *)data = 0; break;
    case 15: *(int *)data = 0; break;
    case 16: *(int *)data = 3; break;
    case 17: *(void **)data = range->kind == SIM_RANGE_POOL ? range->pool : NULL; break;
    case 18: *(size_t *)data = range->blocks * SIM_BLOCK; break;
    case 19: *(CUdeviceptr *)data = range->base; break;
    case 20: *(uint64_t *)data = range->id; break;
    default: return CUDA_ERROR_NOT_SUPPORTED;
    }
    return CUDA_SUCCESS;
}

API CUresult cuPointerGetAttribute(void *data, int attribute, CUdeviceptr pointer)
{
    ENTER();
    LOCKED();
    return data ? attribute_of(data, attribute, pointer) : CUDA_ERROR_INVALID_VALUE;
}

/* Unlike the single form this succeeds for foreign pointers and leaves zeros (documented). */
API CUresult cuPointerGetAttributes(unsigned count, int *attributes, void **data, CUdeviceptr pointer)
{
    ENTER();
    if (!attributes || !data)
        return CUDA_ERROR_INVALID_VALUE;
    LOCKED();
    for (unsigned i = 0; i < count; i++) {
        int word = attributes[i] == 2 || attributes[i] == 6 || attributes[i] == 8 || attributes[i] == 9 ||
                   attributes[i] == 10 || attributes[i] == 13 || attributes[i] == 15 || attributes[i] == 16;
        if (attribute_of(data[i], attributes[i], pointer))
            memset(data[i], 0, word ? 4 : 8);
    }
    return CUDA_SUCCESS;
}

API CUresult cuPointerSetAttribute(const void *value, int attribute, CUdeviceptr pointer)
{
    ENTER();
    LOCKED();
    return value && attribute == 6 && sim_range_at(pointer) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
