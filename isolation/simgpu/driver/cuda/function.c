/* SPDX-License-Identifier: Apache-2.0 */
/* What can be asked of functions and kernels, and occupancy.
 * Return convention: CUresult. */
#include "context.h"
#include "device.h"
#include "module.h"
#include "sim.h"

API CUresult cuFuncGetAttribute(int *value, int attribute, void *handle)
{
    ENTER();
    struct sim_function *function = sim_function_check(handle);
    if (!function || !value || attribute < 0 || attribute > 17)
        return function ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_HANDLE;
    int version = 70;
    if (function->module->context) {
        const struct hw_model *model = &sim_device_of(function->module->context)->card->model;
        version = (int)(model->cc_major * 10 + model->cc_minor);
    }
    switch (attribute) {
    case 0: *value = 1024; break;
    case 3: *value = (int)function->local_bytes; break;
    case 4: *value = 32; break;
    case 5: case 6: *value = version; break;
    case 8: *value = function->attribute[8] ? function->attribute[8] : 49152; break;
    default: *value = function->attribute[attribute];
    }
    return CUDA_SUCCESS;
}

API CUresult cuFuncSetAttribute(void *handle, int attribute, int value)
{
    ENTER();
    struct sim_function *function = sim_function_check(handle);
    if (!function || attribute < 8 || attribute > 17)
        return function ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_HANDLE;
    function->attribute[attribute] = value;
    return CUDA_SUCCESS;
}

API CUresult cuKernelGetAttribute(int *value, int attribute, void *handle, CUdevice device)
{
    (void)device;
    return cuFuncGetAttribute(value, attribute, handle);
}

API CUresult cuKernelSetAttribute(int attribute, int value, void *handle, CUdevice device)
{
    (void)device;
    return cuFuncSetAttribute(handle, attribute, value);
}

API CUresult cuFuncSetCacheConfig(void *handle, int config)
{
    ENTER();
    (void)config;
    return sim_function_check(handle) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

API CUresult cuFuncSetSharedMemConfig(void *handle, int config)
{
    return cuFuncSetCacheConfig(handle, config);
}

API CUresult cuKernelSetCacheConfig(void *handle, int config, CUdevice device)
{
    (void)device;
    return cuFuncSetCacheConfig(handle, config);
}

API CUresult cuFuncGetModule(struct sim_module **module, void *handle)
{
    ENTER();
    struct sim_function *function = sim_function_check(handle);
    if (!function || !module)
        return CUDA_ERROR_INVALID_HANDLE;
    *module = function->module;
    return CUDA_SUCCESS;
}

API CUresult cuFuncGetName(const char **name, void *handle)
{
    ENTER();
    struct sim_function *function = sim_function_check(handle);
    if (!function || !name)
        return CUDA_ERROR_INVALID_VALUE;
    *name = function->name;
    return CUDA_SUCCESS;
}

API CUresult cuKernelGetName(const char **name, void *handle)
{
    return cuFuncGetName(name, handle);
}

API CUresult cuFuncGetParamInfo(void *handle, size_t index, size_t *offset, size_t *bytes)
{
    ENTER();
    struct sim_function *function = sim_function_check(handle);
    if (!function || !offset || index >= function->params)
        return CUDA_ERROR_INVALID_VALUE;
    *offset = function->offset[index];
    if (bytes)
        *bytes = function->size[index];
    return CUDA_SUCCESS;
}

API CUresult cuKernelGetParamInfo(void *handle, size_t index, size_t *offset, size_t *bytes)
{
    return cuFuncGetParamInfo(handle, index, offset, bytes);
}

API CUresult cuFuncGetParamCount(void *handle, size_t *count)
{
    ENTER();
    struct sim_function *function = sim_function_check(handle);
    if (!function || !count)
        return CUDA_ERROR_INVALID_VALUE;
    *count = function->params;
    return CUDA_SUCCESS;
}

API CUresult cuKernelGetParamCount(void *handle, size_t *count)
{
    return cuFuncGetParamCount(handle, count);
}

API CUresult cuFuncIsLoaded(int *state, void *handle)
{
    ENTER();
    if (!sim_function_check(handle) || !state)
        return CUDA_ERROR_INVALID_VALUE;
    *state = 1;
    return CUDA_SUCCESS;
}

API CUresult cuFuncLoad(void *handle)
{
    ENTER();
    return sim_function_check(handle) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

API CUresult cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, void *handle, int threads,
                                                                  size_t shared, unsigned flags)
{
    ENTER();
    struct sim_context *context;
    TRY(sim_current(&context));
    (void)shared, (void)flags;
    if (!blocks || !handle || threads <= 0)
        return CUDA_ERROR_INVALID_VALUE;
    int most = (int)sim_device_of(context)->card->model.threads_per_sm / threads;
    *blocks = most > 32 ? 32 : most;
    return CUDA_SUCCESS;
}

API CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, void *handle, int threads, size_t shared)
{
    return cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, handle, threads, shared, 0);
}

API CUresult cuOccupancyMaxPotentialBlockSizeWithFlags(int *grid, int *block, void *handle, size_t (*shared_of)(int),
                                                       size_t shared, int limit, unsigned flags)
{
    ENTER();
    struct sim_context *context;
    TRY(sim_current(&context));
    (void)shared_of, (void)shared, (void)flags;
    if (!grid || !block || !handle)
        return CUDA_ERROR_INVALID_VALUE;
    const struct hw_model *model = &sim_device_of(context)->card->model;
    *block = limit > 0 && limit < 1024 ? limit : 1024;
    *grid = (int)(model->sms * (model->threads_per_sm / (uint64_t)*block));
    return CUDA_SUCCESS;
}

API CUresult cuOccupancyMaxPotentialBlockSize(int *grid, int *block, void *handle, size_t (*shared_of)(int),
                                              size_t shared, int limit)
{
    return cuOccupancyMaxPotentialBlockSizeWithFlags(grid, block, handle, shared_of, shared, limit, 0);
}
