/* SPDX-License-Identifier: Apache-2.0 */
/* Events: marks in a stream with the card's wall-clock time, neighbours' slices included.
 * Return convention: CUresult. */
#include "context.h"
#include "device.h"
#include "event.h"
#include "graph.h"
#include "sim.h"
#include "stream.h"

#include <stdlib.h>

static struct sim_event *spare; /* destroyed ones, for use again: handles stay readable */
static uint64_t spares;

static CUresult check(struct sim_event *event)
{
    if (!event || event->tag != SIM_EVENT)
        return CUDA_ERROR_INVALID_HANDLE;
    return sim_check_context(event->context);
}

API CUresult cuEventCreate(struct sim_event **event, unsigned flags)
{
    ENTER();
    struct sim_context *context;
    TRY(sim_current(&context));
    if (!event || flags & ~7u || (flags & 4 && !(flags & CU_EVENT_DISABLE_TIMING)))
        return CUDA_ERROR_INVALID_VALUE;
    hw_spin(sim_params()->event_ns);
    LOCKED();
    *event = spare;
    if (spare) {
        spare = (struct sim_event *)spare->seq;
        spares--;
    } else {
        *event = sim_new(sizeof **event);
    }
    **event = (struct sim_event){.tag = SIM_EVENT, .context = context, .flags = flags};
    return CUDA_SUCCESS;
}

API CUresult cuEventDestroy_v2(struct sim_event *event)
{
    ENTER();
    if (!event || event->tag != SIM_EVENT)
        return CUDA_ERROR_INVALID_HANDLE;
    hw_spin(sim_params()->event_ns);
    LOCKED();
    sim_forget_event(event);
    free(event->tips);
    *event = (struct sim_event){.tag = SIM_DEAD, .seq = (uint64_t)spare};
    spare = event;
    spares++;
    return CUDA_SUCCESS;
}

API CUresult cuEventDestroy(struct sim_event *event)
{
    return cuEventDestroy_v2(event);
}

API CUresult cuEventRecordWithFlags(struct sim_event *event, void *handle, unsigned flags)
{
    ENTER();
    struct sim_stream *stream;
    TRY(check(event));
    TRY(sim_stream_of(handle, &stream));
    if (flags > 1)
        return CUDA_ERROR_INVALID_VALUE;
    if (stream->context->device != event->context->device)
        return CUDA_ERROR_INVALID_HANDLE;
    if (stream->capture) {
        LOCKED();
        return sim_capture_record(stream, event);
    }
    hw_spin(sim_params()->event_ns);
    event->capture = NULL;
    struct hw_item work = {.work = HW_MARK};
    TRY(sim_submit(stream, &work, event, NULL));
    if (event->shared)
        sim_event_tell(event, sim_device_of(stream->context));
    return CUDA_SUCCESS;
}

API CUresult cuEventRecord(struct sim_event *event, void *handle)
{
    return cuEventRecordWithFlags(event, handle, 0);
}

API CUresult cuCtxRecordEvent(struct sim_context *context, struct sim_event *event)
{
    TRY(sim_check_context(context));
    return cuEventRecord(event, context->legacy);
}

/* Has the event happened? An event that was never recorded has. */
static int happened(struct sim_event *event, CUresult *fault)
{
    *fault = CUDA_SUCCESS;
    if (sim_event_foreign(event, sim_device_of(event->context)))
        return sim_event_happened(event);
    return event->state != 1 || sim_done(sim_device_of(event->context), event->seq, fault);
}

API CUresult cuEventQuery(struct sim_event *event)
{
    ENTER();
    CUresult fault;
    TRY(check(event));
    if (event->capture)
        return CUDA_ERROR_CAPTURED_EVENT;
    TRY(sim_capture_unsafe(event->context));
    hw_spin(sim_params()->event_ns);
    int done = happened(event, &fault);
    return fault ? fault : done ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

/* Wait for what another process recorded. */
static CUresult wait_foreign(const struct sim_event *event)
{
    while (!sim_event_happened(event))
        hw_rest(&sim_hw, hw_now(&sim_hw) + 20000);
    return CUDA_SUCCESS;
}

API CUresult cuEventSynchronize(struct sim_event *event)
{
    ENTER();
    TRY(check(event));
    if (event->capture)
        return CUDA_ERROR_CAPTURED_EVENT;
    if (sim_event_foreign(event, sim_device_of(event->context)))
        return wait_foreign(event);
    return event->state == 1 ? sim_wait(sim_device_of(event->context), event->seq) : CUDA_SUCCESS;
}

/* When it happened; 0 where its mark is done but still in the queue. */
static uint64_t time_of(const struct sim_event *event)
{
    if (event->state == 2)
        return event->time_ns;
    struct sim_device *device = sim_device_of(event->context);
    LOCKED();
    CARD_LOCKED(device);
    return event->state == 2 ? event->time_ns : hw_item(device->client, event->seq)->end_ns;
}

API CUresult cuEventElapsedTime_v2(float *milliseconds, struct sim_event *from, struct sim_event *to)
{
    ENTER();
    CUresult fault;
    TRY(check(from));
    TRY(check(to));
    if (!milliseconds)
        return CUDA_ERROR_INVALID_VALUE;
    if ((from->flags | to->flags) & CU_EVENT_DISABLE_TIMING || !from->state || !to->state)
        return CUDA_ERROR_INVALID_HANDLE;
    hw_spin(sim_params()->event_ns);
    if (!happened(from, &fault) || fault)
        return fault ? fault : CUDA_ERROR_NOT_READY;
    if (!happened(to, &fault) || fault)
        return fault ? fault : CUDA_ERROR_NOT_READY;
    int64_t ns = (int64_t)(time_of(to) - time_of(from));
    *milliseconds = (float)((double)ns / 1e6);
    return CUDA_SUCCESS;
}

API CUresult cuEventElapsedTime(float *milliseconds, struct sim_event *from, struct sim_event *to)
{
    return cuEventElapsedTime_v2(milliseconds, from, to);
}

/* The stream goes on when the event has happened. Across cards and processes the calling thread waits instead:
 * one card's queue cannot depend on another's clock. */
API CUresult cuStreamWaitEvent(void *handle, struct sim_event *event, unsigned flags)
{
    ENTER();
    struct sim_stream *stream;
    TRY(check(event));
    TRY(sim_stream_of(handle, &stream));
    if (flags > 1)
        return CUDA_ERROR_INVALID_VALUE;
    if (stream->capture || event->capture) {
        LOCKED();
        return sim_capture_join(stream, event);
    }
    if (sim_event_foreign(event, sim_device_of(event->context)))
        return wait_foreign(event);
    if (event->state != 1)
        return CUDA_SUCCESS;
    if (stream->context->device != event->context->device)
        return sim_wait(sim_device_of(event->context), event->seq);
    struct hw_item work = {.work = HW_MARK, .after = event->seq};
    return sim_submit(stream, &work, NULL, NULL);
}

API CUresult cuCtxWaitEvent(struct sim_context *context, struct sim_event *event)
{
    TRY(sim_check_context(context));
    return cuStreamWaitEvent(context->legacy, event, 0);
}
