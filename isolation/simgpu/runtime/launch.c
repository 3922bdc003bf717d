/* SPDX-License-Identifier: Apache-2.0 */
/* Launching kernels, their attributes, occupancy, libraries loaded by name. */
#include "runtime.h"

#include <string.h>

struct function { /* cudaFuncAttributes */
    size_t shared_bytes, const_bytes, local_bytes;
    int threads, registers, ptx, binary, cache_mode, dynamic_shared_bytes, carveout;
    int cluster[6], reserved[16];
};

/* A launch with <<<...>>> pushes its configuration, and its stub pops it. */
static __thread struct launch pushed[8];
static __thread unsigned depth;

API unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared_bytes, void *stream)
{
    if (depth == sizeof pushed / sizeof *pushed)
        return 1;
    pushed[depth++] = (struct launch){.grid = grid, .block = block, .shared_bytes = shared_bytes, .stream = stream};
    return 0;
}

API cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared_bytes, void **stream)
{
    if (!depth)
        return rt_result(52); /* cudaErrorMissingConfiguration */
    const struct launch *launch = &pushed[--depth];
    *grid = launch->grid;
    *block = launch->block;
    *shared_bytes = launch->shared_bytes;
    *stream = launch->stream;
    return cudaSuccess;
}

static cudaError_t enter(const void *kernel, void **function)
{
    cudaError_t result = rt_enter();
    return result ? result : rt_function(kernel, function);
}

/* A shape that no device has is a configuration error of the runtime's own. */
static cudaError_t shape(cudaError_t result)
{
    return result == cudaErrorInvalidValue ? 9 : result; /* cudaErrorInvalidConfiguration */
}

API cudaError_t cudaLaunchKernel(const void *kernel, dim3 grid, dim3 block, void **params, size_t shared_bytes,
                                 void *stream)
{
    void *function = NULL;
    cudaError_t result = enter(kernel, &function);
    if (!result)
        result = shape(cu.cuLaunchKernel(function, grid.x, grid.y, grid.z, block.x, block.y, block.z,
                                         (unsigned)shared_bytes, stream, params, NULL));
    return rt_result(result);
}

API cudaError_t cudaLaunchCooperativeKernel(const void *kernel, dim3 grid, dim3 block, void **params,
                                            size_t shared_bytes, void *stream)
{
    void *function = NULL;
    cudaError_t result = enter(kernel, &function);
    if (!result)
        result = shape(cu.cuLaunchCooperativeKernel(function, grid.x, grid.y, grid.z, block.x, block.y, block.z,
                                                    (unsigned)shared_bytes, stream, params));
    return rt_result(result);
}

API cudaError_t cudaLaunchKernelExC(const struct launch *config, const void *kernel, void **params)
{
    void *function = NULL;
    cudaError_t result = config ? enter(kernel, &function) : cudaErrorInvalidValue;
    if (!result) {
        struct cu_launch launch = {config->grid, config->block, (unsigned)config->shared_bytes,
                                   config->stream, config->attributes, config->attribute_count};
        result = shape(cu.cuLaunchKernelEx(&launch, function, params, NULL));
    }
    return rt_result(result);
}

/* Since CUDA 13 compiled programs ask for a kernel's handle and launch by that; ours is its address. */
API cudaError_t __cudaGetKernel(const void **kernel, const void *host)
{
    *kernel = host;
    return cudaSuccess;
}

API cudaError_t __cudaLaunchKernel(const void *kernel, dim3 grid, dim3 block, void **params, size_t shared_bytes,
                                   void *stream)
{
    return cudaLaunchKernel(kernel, grid, block, params, shared_bytes, stream);
}

API cudaError_t cudaFuncGetAttributes(struct function *attributes, const void *kernel)
{
    void *function = NULL;
    cudaError_t result = attributes ? enter(kernel, &function) : cudaErrorInvalidValue;
    if (result)
        return rt_result(result);
    int value[10];
    for (int i = 0; !result && i < 10; i++)
        result = cu.cuFuncGetAttribute(&value[i], i, function);
    if (result)
        return rt_result(result);
    memset(attributes, 0, sizeof *attributes);
    attributes->threads = value[0];
    attributes->shared_bytes = (size_t)value[1];
    attributes->const_bytes = (size_t)value[2];
    attributes->local_bytes = (size_t)value[3];
    attributes->registers = value[4];
    attributes->ptx = value[5];
    attributes->binary = value[6];
    attributes->cache_mode = value[7];
    attributes->dynamic_shared_bytes = value[8];
    attributes->carveout = value[9];
    return cudaSuccess;
}

API cudaError_t cudaFuncSetAttribute(const void *kernel, int attribute, int value)
{
    void *function = NULL;
    cudaError_t result = enter(kernel, &function);
    return rt_result(result ? result : cu.cuFuncSetAttribute(function, attribute, value));
}

API cudaError_t cudaFuncSetCacheConfig(const void *kernel, int config)
{
    void *function = NULL;
    cudaError_t result = enter(kernel, &function);
    return rt_result(result ? result : cu.cuFuncSetCacheConfig(function, config));
}

API cudaError_t cudaGetFuncBySymbol(void **function, const void *kernel)
{
    return rt_result(enter(kernel, function));
}

API cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, const void *kernel, int threads,
                                                                       size_t shared_bytes, unsigned flags)
{
    void *function = NULL;
    cudaError_t result = enter(kernel, &function);
    if (!result)
        result = cu.cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, function, threads, shared_bytes,
                                                                         flags);
    return rt_result(result);
}

API cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, const void *kernel, int threads,
                                                              size_t shared_bytes)
{
    return cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, kernel, threads, shared_bytes, 0);
}

API cudaError_t cudaLibraryLoadData(void **library, const void *code, void *options, void **values, unsigned count,
                                    void *library_options, void **library_values, unsigned library_count)
{
    ENTER(cu.cuLibraryLoadData(library, code, options, values, count, library_options, library_values, library_count));
}

API cudaError_t cudaLibraryLoadFromFile(void **library, const char *path, void *options, void **values,
                                        unsigned count, void *library_options, void **library_values,
                                        unsigned library_count)
{
    ENTER(cu.cuLibraryLoadFromFile(library, path, options, values, count, library_options, library_values,
                                   library_count));
}

API cudaError_t cudaLibraryUnload(void *library)
{
    ENTER(cu.cuLibraryUnload(library));
}

API cudaError_t cudaLibraryGetKernel(void **kernel, void *library, const char *name)
{
    cudaError_t result = rt_enter();
    if (!result)
        result = cu.cuLibraryGetKernel(kernel, library, name);
    if (!result)
        rt_add_kernel(*kernel);
    return rt_result(result);
}

API cudaError_t cudaLibraryGetKernelCount(unsigned *count, void *library)
{
    ENTER(cu.cuLibraryGetKernelCount(count, library));
}

API cudaError_t cudaLibraryGetGlobal(void **pointer, size_t *bytes, void *library, const char *name)
{
    ENTER(cu.cuLibraryGetGlobal((CUdeviceptr *)pointer, bytes, library, name));
}

API cudaError_t cudaLibraryGetManaged(void **pointer, size_t *bytes, void *library, const char *name)
{
    ENTER(cu.cuLibraryGetManaged((CUdeviceptr *)pointer, bytes, library, name));
}

API cudaError_t cudaLibraryGetUnifiedFunction(void **function, void *library, const char *name)
{
    ENTER(cu.cuLibraryGetUnifiedFunction(function, library, name));
}

API cudaError_t cudaKernelSetAttributeForDevice(const void *kernel, int attribute, int value, int device)
{
    (void)device;
    return cudaFuncSetAttribute(kernel, attribute, value);
}
