/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of devices and hosts, copies, pools, memory and events of other processes. */
#include "runtime.h"

#include <string.h>

enum { TO_HOST_FROM_HOST, TO_DEVICE, TO_HOST, ON_DEVICE, BY_ADDRESS }; /* cudaMemcpyKind */
enum { MEMORY_TYPE = 2, DEVICE_POINTER, HOST_POINTER, IS_MANAGED = 8, DEVICE_ORDINAL }; /* CUpointer_attribute */
enum { UNREGISTERED, HOST, DEVICE, MANAGED };                                           /* cudaMemoryType */
enum { CU_HOST = 1, CU_UNIFIED = 4 };

struct pointer { /* cudaPointerAttributes */
    int type, device;
    void *device_pointer, *host_pointer;
#if RUNTIME >= 13
    long reserved[8];
#endif
};

static CUdeviceptr at(const void *pointer)
{
    return (CUdeviceptr)(uintptr_t)pointer;
}

/* Nothing is asked for: no pointer and no error, where the driver calls it a wrong value. */
API cudaError_t cudaMalloc(void **pointer, size_t bytes)
{
    if (!pointer)
        return rt_result(cudaErrorInvalidValue);
    *pointer = NULL;
    ENTER(bytes ? cu.cuMemAlloc((CUdeviceptr *)pointer, bytes) : cudaSuccess);
}

API cudaError_t cudaMallocPitch(void **pointer, size_t *pitch, size_t width, size_t height)
{
    ENTER(cu.cuMemAllocPitch((CUdeviceptr *)pointer, pitch, width, height, 4));
}

API cudaError_t cudaFree(void *pointer)
{
    ENTER(pointer ? cu.cuMemFree(at(pointer)) : cudaSuccess);
}

API cudaError_t cudaMallocManaged(void **pointer, size_t bytes, unsigned flags)
{
    ENTER(cu.cuMemAllocManaged((CUdeviceptr *)pointer, bytes, flags));
}

API cudaError_t cudaHostAlloc(void **pointer, size_t bytes, unsigned flags)
{
    if (!pointer)
        return rt_result(cudaErrorInvalidValue);
    *pointer = NULL;
    ENTER(bytes ? cu.cuMemHostAlloc(pointer, bytes, flags) : cudaSuccess);
}

API cudaError_t cudaMallocHost(void **pointer, size_t bytes)
{
    return cudaHostAlloc(pointer, bytes, 0);
}

API cudaError_t cudaFreeHost(void *pointer)
{
    ENTER(pointer ? cu.cuMemFreeHost(pointer) : cudaSuccess);
}

API cudaError_t cudaHostRegister(void *pointer, size_t bytes, unsigned flags)
{
    ENTER(cu.cuMemHostRegister(pointer, bytes, flags));
}

API cudaError_t cudaHostUnregister(void *pointer)
{
    ENTER(cu.cuMemHostUnregister(pointer));
}

API cudaError_t cudaHostGetDevicePointer(void **device, void *host, unsigned flags)
{
    ENTER(cu.cuMemHostGetDevicePointer((CUdeviceptr *)device, host, flags));
}

API cudaError_t cudaHostGetFlags(unsigned *flags, void *pointer)
{
    ENTER(cu.cuMemHostGetFlags(flags, pointer));
}

API cudaError_t cudaMemGetInfo(size_t *free, size_t *total)
{
    ENTER(cu.cuMemGetInfo(free, total));
}

/* Memory that the driver knows nothing of is no error, but "unregistered". */
API cudaError_t cudaPointerGetAttributes(struct pointer *attributes, const void *pointer)
{
    if (!attributes)
        return rt_result(cudaErrorInvalidValue);
    cudaError_t result = rt_enter();
    if (result)
        return rt_result(result);
    int type = 0, managed = 0;
    memset(attributes, 0, sizeof *attributes);
    if (cu.cuPointerGetAttribute(&type, MEMORY_TYPE, at(pointer))) {
        *attributes = (struct pointer){.type = UNREGISTERED, .device = -2, .host_pointer = (void *)(uintptr_t)pointer};
        return cudaSuccess;
    }
    cu.cuPointerGetAttribute(&managed, IS_MANAGED, at(pointer));
    attributes->type = managed || type == CU_UNIFIED ? MANAGED : type == CU_HOST ? HOST : DEVICE;
    cu.cuPointerGetAttribute(&attributes->device, DEVICE_ORDINAL, at(pointer));
    cu.cuPointerGetAttribute(&attributes->device_pointer, DEVICE_POINTER, at(pointer));
    if (attributes->type != DEVICE)
        cu.cuPointerGetAttribute(&attributes->host_pointer, HOST_POINTER, at(pointer));
    return cudaSuccess;
}

static cudaError_t copy(void *to, const void *from, size_t bytes, int kind)
{
    switch (bytes ? kind : -1) {
    case -1: return cudaSuccess;
    case TO_DEVICE: return cu.cuMemcpyHtoD(at(to), from, bytes);
    case TO_HOST: return cu.cuMemcpyDtoH(to, at(from), bytes);
    case ON_DEVICE: return cu.cuMemcpyDtoD(at(to), at(from), bytes);
    case TO_HOST_FROM_HOST: case BY_ADDRESS: return cu.cuMemcpy(at(to), at(from), bytes);
    default: return 21; /* cudaErrorInvalidMemcpyDirection */
    }
}

static cudaError_t copy_async(void *to, const void *from, size_t bytes, int kind, void *stream)
{
    switch (bytes ? kind : -1) {
    case -1: return cudaSuccess;
    case TO_DEVICE: return cu.cuMemcpyHtoDAsync(at(to), from, bytes, stream);
    case TO_HOST: return cu.cuMemcpyDtoHAsync(to, at(from), bytes, stream);
    case ON_DEVICE: return cu.cuMemcpyDtoDAsync(at(to), at(from), bytes, stream);
    case TO_HOST_FROM_HOST: case BY_ADDRESS: return cu.cuMemcpyAsync(at(to), at(from), bytes, stream);
    default: return 21;
    }
}

API cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, int kind)
{
    ENTER(copy(to, from, bytes, kind));
}

API cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, int kind, void *stream)
{
    ENTER(copy_async(to, from, bytes, kind, stream));
}

static struct cu_copy2 plane(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width,
                             size_t height, int kind)
{
    int by_address = kind == BY_ADDRESS || kind == TO_HOST_FROM_HOST;
    struct cu_copy2 copy = {.width = width, .height = height};
    copy.from.type = by_address ? CU_UNIFIED : kind == TO_DEVICE ? CU_HOST : DEVICE;
    copy.to.type = by_address ? CU_UNIFIED : kind == TO_HOST ? CU_HOST : DEVICE;
    copy.from.host = from;
    copy.from.device = at(from);
    copy.from.pitch = from_pitch;
    copy.to.host = to;
    copy.to.device = at(to);
    copy.to.pitch = to_pitch;
    return copy;
}

API cudaError_t cudaMemcpy2D(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width,
                             size_t height, int kind)
{
    struct cu_copy2 copy = plane(to, to_pitch, from, from_pitch, width, height, kind);
    ENTER(cu.cuMemcpy2D(&copy));
}

API cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width,
                                  size_t height, int kind, void *stream)
{
    struct cu_copy2 copy = plane(to, to_pitch, from, from_pitch, width, height, kind);
    ENTER(cu.cuMemcpy2DAsync(&copy, stream));
}

API cudaError_t cudaMemcpyPeerAsync(void *to, int to_device, const void *from, int from_device, size_t bytes,
                                    void *stream)
{
    void *there = NULL, *here = NULL;
    cudaError_t result = rt_enter();
    if (!result)
        result = rt_primary(to_device, &there);
    if (!result)
        result = rt_primary(from_device, &here);
    if (!result && bytes)
        result = cu.cuMemcpyPeerAsync(at(to), there, at(from), here, bytes, stream);
    return rt_result(result);
}

API cudaError_t cudaMemcpyPeer(void *to, int to_device, const void *from, int from_device, size_t bytes)
{
    cudaError_t result = cudaMemcpyPeerAsync(to, to_device, from, from_device, bytes, NULL);
    return result ? result : rt_result(cu.cuStreamSynchronize(NULL));
}

API cudaError_t cudaMemset(void *pointer, int value, size_t bytes)
{
    ENTER(bytes ? cu.cuMemsetD8(at(pointer), (unsigned char)value, bytes) : cudaSuccess);
}

API cudaError_t cudaMemsetAsync(void *pointer, int value, size_t bytes, void *stream)
{
    ENTER(bytes ? cu.cuMemsetD8Async(at(pointer), (unsigned char)value, bytes, stream) : cudaSuccess);
}

API cudaError_t cudaMemset2D(void *pointer, size_t pitch, int value, size_t width, size_t height)
{
    ENTER(cu.cuMemsetD2D8(at(pointer), pitch, (unsigned char)value, width, height));
}

API cudaError_t cudaMemset2DAsync(void *pointer, size_t pitch, int value, size_t width, size_t height, void *stream)
{
    ENTER(cu.cuMemsetD2D8Async(at(pointer), pitch, (unsigned char)value, width, height, stream));
}

/* Variables of a program: found by the address of their shadow on the host. */
static cudaError_t inside(const void *symbol, size_t offset, size_t bytes, void **pointer)
{
    CUdeviceptr address;
    size_t size;
    cudaError_t result = rt_enter();
    if (!result)
        result = rt_symbol(symbol, &address, &size);
    if (!result && (offset > size || bytes > size - offset))
        result = cudaErrorInvalidValue;
    if (!result)
        *pointer = (void *)(uintptr_t)(address + offset);
    return rt_result(result);
}

API cudaError_t cudaGetSymbolAddress(void **pointer, const void *symbol)
{
    return inside(symbol, 0, 0, pointer);
}

API cudaError_t cudaGetSymbolSize(size_t *bytes, const void *symbol)
{
    CUdeviceptr address;
    ENTER(rt_symbol(symbol, &address, bytes));
}

API cudaError_t cudaMemcpyToSymbol(const void *symbol, const void *from, size_t bytes, size_t offset, int kind)
{
    void *to = NULL;
    cudaError_t result = inside(symbol, offset, bytes, &to);
    return result ? result : rt_result(copy(to, from, bytes, kind));
}

API cudaError_t cudaMemcpyToSymbolAsync(const void *symbol, const void *from, size_t bytes, size_t offset, int kind,
                                        void *stream)
{
    void *to = NULL;
    cudaError_t result = inside(symbol, offset, bytes, &to);
    return result ? result : rt_result(copy_async(to, from, bytes, kind, stream));
}

API cudaError_t cudaMemcpyFromSymbol(void *to, const void *symbol, size_t bytes, size_t offset, int kind)
{
    void *from = NULL;
    cudaError_t result = inside(symbol, offset, bytes, &from);
    return result ? result : rt_result(copy(to, from, bytes, kind));
}

API cudaError_t cudaMemcpyFromSymbolAsync(void *to, const void *symbol, size_t bytes, size_t offset, int kind,
                                          void *stream)
{
    void *from = NULL;
    cudaError_t result = inside(symbol, offset, bytes, &from);
    return result ? result : rt_result(copy_async(to, from, bytes, kind, stream));
}

API cudaError_t cudaMallocAsync(void **pointer, size_t bytes, void *stream)
{
    if (!pointer)
        return rt_result(cudaErrorInvalidValue);
    *pointer = NULL;
    ENTER(bytes ? cu.cuMemAllocAsync((CUdeviceptr *)pointer, bytes, stream) : cudaSuccess);
}

API cudaError_t cudaMallocFromPoolAsync(void **pointer, size_t bytes, void *pool, void *stream)
{
    ENTER(cu.cuMemAllocFromPoolAsync((CUdeviceptr *)pointer, bytes, pool, stream));
}

API cudaError_t cudaFreeAsync(void *pointer, void *stream)
{
    ENTER(pointer ? cu.cuMemFreeAsync(at(pointer), stream) : cudaSuccess);
}

API cudaError_t cudaDeviceGetDefaultMemPool(void **pool, int device)
{
    START(cu.cuDeviceGetDefaultMemPool(pool, device));
}

API cudaError_t cudaDeviceGetMemPool(void **pool, int device)
{
    START(cu.cuDeviceGetMemPool(pool, device));
}

API cudaError_t cudaDeviceSetMemPool(int device, void *pool)
{
    START(cu.cuDeviceSetMemPool(device, pool));
}

API cudaError_t cudaMemPoolCreate(void **pool, const void *properties)
{
    ENTER(cu.cuMemPoolCreate(pool, properties));
}

API cudaError_t cudaMemPoolDestroy(void *pool)
{
    ENTER(cu.cuMemPoolDestroy(pool));
}

API cudaError_t cudaMemPoolTrimTo(void *pool, size_t keep_bytes)
{
    ENTER(cu.cuMemPoolTrimTo(pool, keep_bytes));
}

API cudaError_t cudaMemPoolSetAttribute(void *pool, int attribute, void *value)
{
    ENTER(cu.cuMemPoolSetAttribute(pool, attribute, value));
}

API cudaError_t cudaMemPoolGetAttribute(void *pool, int attribute, void *value)
{
    ENTER(cu.cuMemPoolGetAttribute(pool, attribute, value));
}

API cudaError_t cudaMemPoolSetAccess(void *pool, const void *access, size_t count)
{
    ENTER(cu.cuMemPoolSetAccess(pool, access, count));
}

API cudaError_t cudaMemPoolGetAccess(int *flags, void *pool, void *location)
{
    ENTER(cu.cuMemPoolGetAccess(flags, pool, location));
}

API cudaError_t cudaMemPoolExportToShareableHandle(void *handle, void *pool, int type, unsigned flags)
{
    ENTER(cu.cuMemPoolExportToShareableHandle(handle, pool, type, flags));
}

API cudaError_t cudaMemPoolImportFromShareableHandle(void **pool, void *handle, int type, unsigned flags)
{
    ENTER(cu.cuMemPoolImportFromShareableHandle(pool, handle, type, flags));
}

API cudaError_t cudaMemPoolExportPointer(void *data, void *pointer)
{
    ENTER(cu.cuMemPoolExportPointer(data, at(pointer)));
}

API cudaError_t cudaMemPoolImportPointer(void **pointer, void *pool, void *data)
{
    ENTER(cu.cuMemPoolImportPointer((CUdeviceptr *)pointer, pool, data));
}

API cudaError_t cudaIpcGetMemHandle(ipc_handle *handle, void *pointer)
{
    ENTER(cu.cuIpcGetMemHandle(handle, at(pointer)));
}

API cudaError_t cudaIpcOpenMemHandle(void **pointer, ipc_handle handle, unsigned flags)
{
    ENTER(cu.cuIpcOpenMemHandle((CUdeviceptr *)pointer, handle, flags));
}

API cudaError_t cudaIpcCloseMemHandle(void *pointer)
{
    ENTER(cu.cuIpcCloseMemHandle(at(pointer)));
}

API cudaError_t cudaIpcGetEventHandle(ipc_handle *handle, void *event)
{
    ENTER(cu.cuIpcGetEventHandle(handle, event));
}

API cudaError_t cudaIpcOpenEventHandle(void **event, ipc_handle handle)
{
    ENTER(cu.cuIpcOpenEventHandle(event, handle));
}
