/* SPDX-License-Identifier: Apache-2.0 */
/* Streams: lanes of the card's queue with CUDA's ordering rules.
 * Return convention: CUresult. */
#include "context.h"
#include "device.h"
#include "graph.h"
#include "pool.h"
#include "sim.h"
#include "stream.h"

static uint64_t stream_ids;

/* A new stream of the context; `lane` -1: one of its own, shared only when there are very many. */
struct sim_stream *sim_make_stream(struct sim_context *context, unsigned flags, int lane)
{
    struct sim_device *device = sim_device_of(context);
    struct sim_stream *stream = device->streams;
    while (stream && stream->tag != SIM_DEAD)
        stream = stream->next;
    if (!stream) {
        stream = sim_new(sizeof *stream);
        stream->next = device->streams;
        device->streams = stream;
    }
    struct sim_stream *next = stream->next;
    *stream = (struct sim_stream){.tag = SIM_STREAM, .context = context, .flags = flags, .next = next};
    stream->id = ++stream_ids;
    stream->lane = lane < 0 ? (unsigned)(1 + stream->id % (HW_LANES - 1)) : (unsigned)lane;
    return stream;
}

/* The stream behind a handle: the current context's default for NULL and the two special values. */
CUresult sim_stream_of(void *handle, struct sim_stream **stream)
{
    if ((uintptr_t)handle > CU_STREAM_PER_THREAD_HANDLE) {
        *stream = handle;
        if ((*stream)->tag != SIM_STREAM)
            return CUDA_ERROR_INVALID_HANDLE;
        return sim_check_context((*stream)->context);
    }
    struct sim_context *context;
    TRY(sim_current(&context));
    *stream = (uintptr_t)handle == CU_STREAM_PER_THREAD_HANDLE ? context->per_thread : context->legacy;
    return CUDA_SUCCESS;
}

API CUresult cuStreamCreateWithPriority(struct sim_stream **stream, unsigned flags, int priority)
{
    ENTER();
    struct sim_context *context;
    TRY(sim_current(&context));
    if (!stream || flags & ~CU_STREAM_NON_BLOCKING)
        return CUDA_ERROR_INVALID_VALUE;
    LOCKED();
    *stream = sim_make_stream(context, flags, -1);
    (*stream)->priority = priority > 0 ? 0 : priority < -5 ? -5 : priority;
    return CUDA_SUCCESS;
}

API CUresult cuStreamCreate(struct sim_stream **stream, unsigned flags)
{
    return cuStreamCreateWithPriority(stream, flags, 0);
}

/* Destroying a stream lets its queued work finish. */
API CUresult cuStreamDestroy_v2(struct sim_stream *stream)
{
    ENTER();
    if ((uintptr_t)stream <= CU_STREAM_PER_THREAD_HANDLE || stream->tag != SIM_STREAM)
        return CUDA_ERROR_INVALID_HANDLE;
    LOCKED();
    sim_stream_forget_capture(stream);
    stream->tag = SIM_DEAD;
    return CUDA_SUCCESS;
}

API CUresult cuStreamDestroy(struct sim_stream *stream)
{
    return cuStreamDestroy_v2(stream);
}

API CUresult cuStreamSynchronize(void *handle)
{
    ENTER();
    struct sim_stream *stream;
    TRY(sim_stream_of(handle, &stream));
    if (stream->capture)
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    struct sim_device *device = sim_device_of(stream->context);
    TRY(sim_wait(device, stream->last));
    LOCKED();
    sim_pools_settle(device);
    return CUDA_SUCCESS;
}

API CUresult cuStreamQuery(void *handle)
{
    ENTER();
    struct sim_stream *stream;
    TRY(sim_stream_of(handle, &stream));
    if (stream->capture)
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    CUresult fault = CUDA_SUCCESS;
    if (!stream->last)
        return CUDA_SUCCESS;
    int done = sim_done(sim_device_of(stream->context), stream->last, &fault);
    return fault ? fault : done ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

API CUresult cuStreamGetPriority(void *handle, int *priority)
{
    ENTER();
    struct sim_stream *stream;
    TRY(sim_stream_of(handle, &stream));
    if (!priority)
        return CUDA_ERROR_INVALID_VALUE;
    *priority = stream->priority;
    return CUDA_SUCCESS;
}

API CUresult cuStreamGetFlags(void *handle, unsigned *flags)
{
    ENTER();
    struct sim_stream *stream;
    TRY(sim_stream_of(handle, &stream));
    if (!flags)
        return CUDA_ERROR_INVALID_VALUE;
    *flags = stream->flags;
    return CUDA_SUCCESS;
}

API CUresult cuStreamGetId(void *handle, unsigned long long *id)
{
    ENTER();
    struct sim_stream *stream;
    TRY(sim_stream_of(handle, &stream));
    if (!id)
        return CUDA_ERROR_INVALID_VALUE;
    *id = stream->id;
    return CUDA_SUCCESS;
}

API CUresult cuStreamGetDevice(void *handle, CUdevice *device)
{
    ENTER();
    struct sim_stream *stream;
    TRY(sim_stream_of(handle, &stream));
    if (!device)
        return CUDA_ERROR_INVALID_VALUE;
    *device = stream->context->device;
    return CUDA_SUCCESS;
}

API CUresult cuStreamGetCtx(void *handle, struct sim_context **context)
{
    ENTER();
    struct sim_stream *stream;
    TRY(sim_stream_of(handle, &stream));
    if (!context)
        return CUDA_ERROR_INVALID_VALUE;
    *context = stream->context;
    return CUDA_SUCCESS;
}

API CUresult cuStreamGetCtx_v2(void *handle, struct sim_context **context, void **green)
{
    struct sim_stream *stream;
    TRY(cuStreamGetCtx(handle, context));
    TRY(sim_stream_of(handle, &stream));
    if (green)
        *green = stream->green;
    return CUDA_SUCCESS;
}

/* Attributes of streams are taken and have no effect. */
API CUresult cuStreamSetAttribute(void *handle, int attribute, const void *value)
{
    ENTER();
    struct sim_stream *stream;
    (void)attribute;
    return value ? sim_stream_of(handle, &stream) : CUDA_ERROR_INVALID_VALUE;
}

API CUresult cuStreamCopyAttributes(void *to, void *from)
{
    ENTER();
    struct sim_stream *stream;
    TRY(sim_stream_of(to, &stream));
    return sim_stream_of(from, &stream);
}

API CUresult cuStreamAttachMemAsync(void *handle, CUdeviceptr pointer, size_t bytes, unsigned flags)
{
    ENTER();
    struct sim_stream *stream;
    (void)pointer, (void)bytes, (void)flags;
    return sim_stream_of(handle, &stream);
}

/* Queue a host function, or capture it. */
static CUresult host_call(void *handle, struct sim_host_call *call)
{
    ENTER();
    struct sim_stream *stream;
    TRY(sim_stream_of(handle, &stream));
    call->stream = stream;
    if (stream->capture) {
        LOCKED();
        struct sim_node *node;
        if (!call->fn)
            return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
        TRY(sim_capture_node(stream, CU_NODE_HOST, &node));
        node->host = (struct cu_host_node){call->fn, call->data};
        return CUDA_SUCCESS;
    }
    struct hw_item work = {.work = HW_HOST};
    return sim_submit(stream, &work, NULL, call);
}

API CUresult cuLaunchHostFunc(void *handle, cu_host_fn fn, void *data)
{
    struct sim_host_call call = {.fn = fn, .data = data};
    return fn ? host_call(handle, &call) : CUDA_ERROR_INVALID_VALUE;
}

API CUresult cuLaunchHostFunc_v2(void *handle, cu_host_fn fn, void *data, unsigned mode)
{
    (void)mode;
    return cuLaunchHostFunc(handle, fn, data);
}

API CUresult cuStreamAddCallback(void *handle, void (*fn)(void *, CUresult, void *), void *data, unsigned flags)
{
    struct sim_host_call call = {.stream_fn = fn, .data = data};
    return fn && !flags ? host_call(handle, &call) : CUDA_ERROR_INVALID_VALUE;
}
