/* SPDX-License-Identifier: Apache-2.0 */
/* What can be asked of a context, and settings that change nothing here.
 * Return convention: CUresult. */
#include "context.h"
#include "device.h"
#include "sim.h"

API CUresult cuCtxGetDevice(CUdevice *device)
{
    ENTER();
    struct sim_context *context;
    TRY(sim_current(&context));
    if (!device)
        return CUDA_ERROR_INVALID_VALUE;
    *device = context->device;
    return CUDA_SUCCESS;
}

API CUresult cuCtxGetDevice_v2(CUdevice *device, struct sim_context *context)
{
    ENTER();
    if (!context)
        TRY(sim_current(&context));
    TRY(sim_check_context(context));
    if (!device)
        return CUDA_ERROR_INVALID_VALUE;
    *device = context->device;
    return CUDA_SUCCESS;
}

API CUresult cuCtxGetFlags(unsigned *flags)
{
    ENTER();
    struct sim_context *context;
    TRY(sim_current(&context));
    if (!flags)
        return CUDA_ERROR_INVALID_VALUE;
    *flags = context->flags;
    return CUDA_SUCCESS;
}

API CUresult cuCtxSetFlags(unsigned flags)
{
    ENTER();
    struct sim_context *context;
    TRY(sim_current(&context));
    context->flags = flags;
    return CUDA_SUCCESS;
}

API CUresult cuCtxGetId(struct sim_context *context, unsigned long long *id)
{
    ENTER();
    if (!context)
        TRY(sim_current(&context));
    TRY(sim_check_context(context));
    if (!id)
        return CUDA_ERROR_INVALID_VALUE;
    *id = context->id;
    return CUDA_SUCCESS;
}

API CUresult cuCtxGetApiVersion(struct sim_context *context, unsigned *version)
{
    ENTER();
    if (context)
        TRY(sim_check_context(context));
    if (!version)
        return CUDA_ERROR_INVALID_VALUE;
    *version = 3020;
    return CUDA_SUCCESS;
}

API CUresult cuCtxGetStreamPriorityRange(int *least, int *greatest)
{
    ENTER();
    struct sim_context *context;
    TRY(sim_current(&context));
    if (least)
        *least = 0;
    if (greatest)
        *greatest = -5;
    return CUDA_SUCCESS;
}

API CUresult cuCtxSynchronize(void)
{
    ENTER();
    struct sim_context *context;
    TRY(sim_current(&context));
    return sim_wait_context(sim_device_of(context));
}

API CUresult cuCtxSynchronize_v2(struct sim_context *context)
{
    ENTER();
    if (!context)
        TRY(sim_current(&context));
    TRY(sim_check_context(context));
    return sim_wait_context(sim_device_of(context));
}

API CUresult cuCtxAttach(struct sim_context **context, unsigned flags)
{
    ENTER();
    if (flags || !context)
        return CUDA_ERROR_INVALID_VALUE;
    return sim_current(context);
}

/* Succeeds inside a context and changes nothing. */
static CUresult no_effect(void)
{
    ENTER();
    struct sim_context *context;
    return sim_current(&context);
}

API CUresult cuCtxSetCacheConfig(int config)
{
    (void)config;
    return no_effect();
}

API CUresult cuCtxSetSharedMemConfig(int config)
{
    (void)config;
    return no_effect();
}

API CUresult cuCtxResetPersistingL2Cache(void)
{
    return no_effect();
}

API CUresult cuCtxGetCacheConfig(int *config)
{
    TRY(no_effect());
    if (!config)
        return CUDA_ERROR_INVALID_VALUE;
    *config = 0;
    return CUDA_SUCCESS;
}

API CUresult cuCtxGetSharedMemConfig(int *config)
{
    return cuCtxGetCacheConfig(config);
}

API CUresult cuCtxEnablePeerAccess(struct sim_context *peer, unsigned flags)
{
    ENTER();
    struct sim_context *context;
    TRY(sim_current(&context));
    TRY(sim_check_context(peer));
    if (flags)
        return CUDA_ERROR_INVALID_VALUE;
    return peer->device == context->device ? CUDA_ERROR_PEER_ACCESS_UNSUPPORTED : CUDA_SUCCESS;
}

API CUresult cuCtxDisablePeerAccess(struct sim_context *peer)
{
    ENTER();
    struct sim_context *context;
    TRY(sim_current(&context));
    return sim_check_context(peer);
}

/* Profilers have nothing to see; starting and stopping them succeeds. */
API CUresult cuProfilerStart(void)
{
    return no_effect();
}

API CUresult cuProfilerStop(void)
{
    return no_effect();
}

API CUresult cuCtxGetLimit(size_t *value, int which)
{
    ENTER();
    struct sim_context *context;
    TRY(sim_current(&context));
    if (!value)
        return CUDA_ERROR_INVALID_VALUE;
    if (which < 0 || which >= CU_LIMITS)
        return CUDA_ERROR_UNSUPPORTED_LIMIT;
    *value = context->limit[which];
    return CUDA_SUCCESS;
}
