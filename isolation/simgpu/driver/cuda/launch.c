/* SPDX-License-Identifier: Apache-2.0 */
/* Launching kernels: what one costs, and handing it to its stream.
 * Return convention: CUresult. */
#include "context.h"
#include "device.h"
#include "graph.h"
#include "module.h"
#include "sim.h"
#include "stream.h"

#include <string.h>

/* The K-th parameter as an integer, from the array of pointers or from the packed buffer. */
static uint64_t parameter(const struct sim_function *function, int k, void **params, void **extra)
{
    uint64_t value = 0;
    const char *at = NULL;
    if (k < 0 || (unsigned)k >= function->params)
        return 0;
    if (params)
        at = params[k];
    for (int i = 0; !params && extra && extra[i] && i < 8; i += 2)
        if ((uintptr_t)extra[i] == 1) /* CU_LAUNCH_PARAM_BUFFER_POINTER */
            at = (const char *)extra[i + 1] + function->offset[k];
    if (at)
        memcpy(&value, at, function->size[k] < 8 ? function->size[k] : 8);
    return value;
}

static uint64_t figure(const struct sim_function *function, const struct sim_figure *figure, void **params, void **extra)
{
    uint64_t value = figure->parameter < 0 ? figure->value : parameter(function, figure->parameter, params, extra);
    return value * figure->scale;
}

/* Duration and width of a launch on a device, as its image describes it. */
CUresult sim_cost(const struct sim_function *function, const struct sim_device *device, const unsigned grid[3],
                  const unsigned block[3], void **params, void **extra, struct hw_item *work)
{
    const struct hw_model *model = &device->card->model;
    uint64_t threads = (uint64_t)block[0] * block[1] * block[2];
    uint64_t blocks = (uint64_t)grid[0] * grid[1] * grid[2];
    if (!blocks || !threads || threads > 1024 || block[2] > 64 || grid[1] > 65535 || grid[2] > 65535)
        return CUDA_ERROR_INVALID_VALUE;
    if (function->params && !params && !extra)
        return CUDA_ERROR_INVALID_VALUE;
    uint64_t at_once = model->sms * (threads < model->threads_per_sm ? model->threads_per_sm / threads : 1);
    uint64_t waves = (blocks + at_once - 1) / at_once;
    uint64_t ns = function->ns.given ? figure(function, &function->ns, params, extra) : sim_params()->kernel_ns;
    uint64_t width = function->width.given ? figure(function, &function->width, params, extra)
                                           : blocks * 1000000 / at_once;
    if (!function->ns.given || function->per_wave)
        ns *= waves;
    *work = (struct hw_item){.work = HW_KERNEL, .left_ns = ns ? ns : 1, .fault = (uint64_t)function->fault};
    work->width = width > 1000000 ? 1000000 : width ? width : 1;
    return CUDA_SUCCESS;
}

/* Durations vary by up to jitter_permille both ways; every kernel pays the gap to the next. */
static void vary(struct sim_device *device, struct hw_item *work)
{
    uint64_t permille = sim_params()->jitter_permille;
    if (permille) {
        CARD_LOCKED(device);
        uint64_t draw = hw_random(device->card) % (2 * permille + 1);
        work->left_ns = work->left_ns * (1000 + draw - permille) / 1000;
    }
    work->left_ns += sim_params()->gap_ns;
}

/* A green context has part of the card: what would be wider takes longer. */
static void confine(const struct sim_context *context, struct hw_item *work)
{
    if (!context->share || work->width <= context->share)
        return;
    work->left_ns = work->left_ns * work->width / context->share;
    work->width = context->share;
}

/* Local memory that a kernel needs beyond the context's stack is taken at its first launch. */
static CUresult local_memory(struct sim_function *function)
{
    struct sim_context *context = function->module->context;
    if (!context || function->local_bytes <= context->limit[CU_LIMIT_STACK])
        return CUDA_SUCCESS;
    LOCKED();
    const struct hw_model *model = &sim_device_of(context)->card->model;
    uint64_t more = (function->local_bytes - context->limit[CU_LIMIT_STACK]) * model->sms * model->threads_per_sm;
    more = sim_round(more, sim_params()->granule_bytes);
    TRY(sim_charge(sim_device_of(context), HW_CONTEXT, more));
    context->limit_bytes += more;
    context->limit[CU_LIMIT_STACK] = function->local_bytes;
    return CUDA_SUCCESS;
}

API CUresult cuKernelGetFunction(struct sim_function **function, void *handle);

/* One launch in a stream, or one node while capturing. */
static CUresult launch(void *handle, const unsigned grid[3], const unsigned block[3], unsigned shared,
                       void *stream_handle, void **params, void **extra)
{
    ENTER();
    struct sim_function *function = sim_function_check(handle);
    struct sim_stream *stream;
    struct hw_item work;
    if (!function)
        return CUDA_ERROR_INVALID_HANDLE;
    TRY(sim_stream_of(stream_handle, &stream));
    if (!function->module->context) /* a kernel of a library */
        TRY(cuKernelGetFunction(&function, function));
    struct sim_device *device = sim_device_of(stream->context);
    TRY(sim_cost(function, device, grid, block, params, extra, &work));
    TRY(local_memory(function));
    confine(stream->context, &work);
    hw_spin(sim_params()->launch_ns);
    vary(device, &work);
    if (!stream->capture)
        return sim_submit(stream, &work, NULL, NULL);
    LOCKED();
    struct sim_node *node;
    TRY(sim_capture_node(stream, CU_NODE_KERNEL, &node));
    node->work = work;
    node->kernel = (struct cu_kernel_node){function, {grid[0], grid[1], grid[2]}, {block[0], block[1], block[2]},
                                           shared, NULL, NULL, NULL, NULL};
    return CUDA_SUCCESS;
}

API CUresult cuLaunchKernel(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                            unsigned bz, unsigned shared, void *stream, void **params, void **extra)
{
    const unsigned grid[3] = {gx, gy, gz}, block[3] = {bx, by, bz};
    return launch(function, grid, block, shared, stream, params, extra);
}

API CUresult cuLaunchKernelEx(const struct cu_launch *config, void *function, void **params, void **extra)
{
    if (!config)
        return CUDA_ERROR_INVALID_VALUE;
    return launch(function, config->grid, config->block, config->shared_bytes, config->stream, params, extra);
}

API CUresult cuLaunchCooperativeKernel(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                                       unsigned by, unsigned bz, unsigned shared, void *stream, void **params)
{
    const unsigned grid[3] = {gx, gy, gz}, block[3] = {bx, by, bz};
    return launch(function, grid, block, shared, stream, params, NULL);
}
