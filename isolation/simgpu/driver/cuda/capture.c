/* SPDX-License-Identifier: Apache-2.0 */
/* Stream capture: what would run is recorded as nodes of a graph.
 * Return convention: CUresult. */
#include "context.h"
#include "device.h"
#include "event.h"
#include "graph.h"
#include "sim.h"
#include "stream.h"

#include <stdlib.h>
#include <string.h>

enum { GLOBAL, THREAD_LOCAL, RELAXED };

static uint64_t capture_ids;
static __thread int thread_mode;

static void set_tips(struct sim_node ***tips, size_t *count, struct sim_node *const *from, size_t number)
{
    struct sim_node **copy = sim_new((number + 1) * sizeof *copy);
    for (size_t i = 0; i < number; i++)
        copy[i] = from[i];
    free(*tips);
    *tips = copy;
    *count = number;
}

/* Append a node after everything this stream has captured so far. */
CUresult sim_capture_node(struct sim_stream *stream, enum cu_node type, struct sim_node **node)
{
    if (stream->capture_broken)
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    *node = sim_node_new(stream->capture, type, stream->tips, stream->tip_count);
    set_tips(&stream->tips, &stream->tip_count, node, 1);
    return CUDA_SUCCESS;
}

/* Append a node of which only the cost is known. */
CUresult sim_capture_work(struct sim_stream *stream, enum cu_node type, const struct hw_item *work)
{
    struct sim_node *node;
    TRY(sim_capture_node(stream, type, &node));
    node->work = *work;
    return CUDA_SUCCESS;
}

/* An event recorded in a captured stream names a place in the graph. */
CUresult sim_capture_record(struct sim_stream *stream, struct sim_event *event)
{
    event->capture = stream->capture;
    set_tips(&event->tips, &event->tip_count, stream->tips, stream->tip_count);
    return CUDA_SUCCESS;
}

/* Waiting for a captured event joins the stream to its capture. */
CUresult sim_capture_join(struct sim_stream *stream, struct sim_event *event)
{
    if (!event->capture || !event->capture->capturing)
        return stream->capture ? CUDA_ERROR_STREAM_CAPTURE_ISOLATION : CUDA_SUCCESS;
    if (stream->capture && stream->capture != event->capture)
        return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
    size_t before = stream->capture ? stream->tip_count : 0, count = before + event->tip_count;
    struct sim_node **both = sim_new((count + 1) * sizeof *both);
    for (size_t i = 0; i < count; i++)
        both[i] = i < before ? stream->tips[i] : event->tips[i - before];
    stream->capture = event->capture;
    set_tips(&stream->tips, &stream->tip_count, both, count);
    free(both);
    return CUDA_SUCCESS;
}

/* The stream is no longer captured. */
void sim_stream_forget_capture(struct sim_stream *stream)
{
    free(stream->tips);
    stream->tips = NULL;
    stream->tip_count = 0;
    stream->capture = NULL;
    stream->capture_origin = stream->capture_broken = stream->capture_cig = 0;
}

/* A call that may be unsafe under a capture: it spoils every global one, and the calling thread's own, unless
 * the thread is relaxed about that. */
CUresult sim_capture_unsafe(struct sim_context *context)
{
    CUresult rc = CUDA_SUCCESS;
    if (thread_mode == RELAXED)
        return rc;
    LOCKED();
    for (struct sim_stream *stream = sim_device_of(context)->streams; stream; stream = stream->next) {
        int own = stream->capture_mode != RELAXED && stream->capture_thread == &thread_mode;
        if (stream->capture_origin && (own || (stream->capture_mode == GLOBAL && thread_mode == GLOBAL))) {
            stream->capture_broken = 1;
            rc = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
        }
    }
    return rc;
}

static CUresult begin(void *handle, struct sim_graph *graph, struct sim_node *const *after, size_t count, int mode)
{
    ENTER();
    struct sim_stream *stream;
    TRY(sim_stream_of(handle, &stream));
    LOCKED();
    if (stream->lane == 0)
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED; /* the default stream cannot be captured */
    if (stream->capture)
        return CUDA_ERROR_ILLEGAL_STATE;
    stream->capture = graph ? graph : sim_graph_new();
    stream->capture->capturing = 1;
    stream->capture_origin = 1;
    stream->capture_mode = mode;
    stream->capture_thread = &thread_mode;
    stream->capture_id = ++capture_ids;
    set_tips(&stream->tips, &stream->tip_count, after, count);
    return CUDA_SUCCESS;
}

API CUresult cuStreamBeginCapture_v2(void *stream, int mode)
{
    return mode < 0 || mode > 2 ? CUDA_ERROR_INVALID_VALUE : begin(stream, NULL, NULL, 0, mode);
}

API CUresult cuStreamBeginCapture(void *stream)
{
    return begin(stream, NULL, NULL, 0, GLOBAL);
}

API CUresult cuStreamBeginCaptureToGraph(void *stream, void *handle, struct sim_node *const *after, const void *edges,
                                         size_t count, int mode)
{
    struct sim_graph *graph = sim_graph_check(handle);
    (void)edges;
    return graph ? begin(stream, graph, after, count, mode) : CUDA_ERROR_INVALID_VALUE;
}

/* Into a graph that has its nodes already: they are recorded again, and the old ones go. The callback, which is asked
 * where parameters differ, has nothing to say here. */
API CUresult cuStreamBeginRecaptureToGraph(void *stream, int mode, void *handle, void *differs, void *data)
{
    struct sim_graph *graph = sim_graph_check(handle);
    (void)differs, (void)data;
    TRY(graph && mode >= 0 && mode <= 2 ? begin(stream, graph, NULL, 0, mode) : CUDA_ERROR_INVALID_VALUE);
    LOCKED();
    sim_graph_clear(graph);
    return CUDA_SUCCESS;
}

/* Into a command list of the graphics driver, which is not here: recorded, and nothing runs. */
API CUresult cuStreamBeginCaptureToCig(void *handle, void *how)
{
    TRY(how ? begin(handle, NULL, NULL, 0, RELAXED) : CUDA_ERROR_INVALID_VALUE);
    struct sim_stream *stream;
    TRY(sim_stream_of(handle, &stream));
    LOCKED();
    stream->capture_cig = 1;
    return CUDA_SUCCESS;
}

static CUresult end(void *handle, struct sim_graph **graph, int cig)
{
    ENTER();
    struct sim_stream *stream;
    TRY(sim_stream_of(handle, &stream));
    LOCKED();
    if (!stream->capture || stream->capture_cig != cig)
        return CUDA_ERROR_ILLEGAL_STATE;
    if (!stream->capture_origin)
        return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
    struct sim_graph *captured = stream->capture;
    int broken = stream->capture_broken;
    for (struct sim_stream *other = sim_device_of(stream->context)->streams; other; other = other->next)
        if (other->capture == captured)
            sim_stream_forget_capture(other);
    captured->capturing = 0;
    if (graph)
        *graph = broken ? NULL : captured;
    return broken ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : CUDA_SUCCESS;
}

API CUresult cuStreamEndCapture(void *handle, struct sim_graph **graph)
{
    return end(handle, graph, 0);
}

API CUresult cuStreamEndCaptureToCig(void *handle)
{
    return end(handle, NULL, 1);
}

static int status_of(const struct sim_stream *stream)
{
    return !stream->capture || stream->capture_cig ? 0 : stream->capture_broken ? 2 : 1;
}

API CUresult cuStreamIsCapturing(void *handle, int *status)
{
    ENTER();
    struct sim_stream *stream;
    TRY(sim_stream_of(handle, &stream));
    if (!status)
        return CUDA_ERROR_INVALID_VALUE;
    *status = status_of(stream);
    return CUDA_SUCCESS;
}

API CUresult cuStreamGetCaptureInfo_v2(void *handle, int *status, uint64_t *id, struct sim_graph **graph,
                                       struct sim_node ***tips, size_t *count)
{
    ENTER();
    struct sim_stream *stream;
    TRY(sim_stream_of(handle, &stream));
    if (!status)
        return CUDA_ERROR_INVALID_VALUE;
    *status = status_of(stream);
    if (id)
        *id = stream->capture_id;
    if (graph)
        *graph = stream->capture;
    if (tips)
        *tips = stream->tips;
    if (count)
        *count = stream->tip_count;
    return CUDA_SUCCESS;
}

API CUresult cuStreamGetCaptureInfo(void *handle, int *status, uint64_t *id)
{
    return cuStreamGetCaptureInfo_v2(handle, status, id, NULL, NULL, NULL);
}

API CUresult cuStreamGetCaptureInfo_v3(void *handle, int *status, uint64_t *id, struct sim_graph **graph,
                                       struct sim_node ***tips, const void **edges, size_t *count)
{
    if (edges)
        *edges = NULL;
    return cuStreamGetCaptureInfo_v2(handle, status, id, graph, tips, count);
}

API CUresult cuStreamUpdateCaptureDependencies(void *handle, struct sim_node **nodes, size_t count, unsigned flags)
{
    ENTER();
    struct sim_stream *stream;
    TRY(sim_stream_of(handle, &stream));
    LOCKED();
    if (!stream->capture)
        return CUDA_ERROR_ILLEGAL_STATE;
    size_t before = flags ? 0 : stream->tip_count; /* 0 adds, 1 sets */
    struct sim_node **both = sim_new((before + count + 1) * sizeof *both);
    for (size_t i = 0; i < before + count; i++)
        both[i] = i < before ? stream->tips[i] : nodes[i - before];
    set_tips(&stream->tips, &stream->tip_count, both, before + count);
    free(both);
    return CUDA_SUCCESS;
}

API CUresult cuStreamUpdateCaptureDependencies_v2(void *handle, struct sim_node **nodes, const void *edges,
                                                  size_t count, unsigned flags)
{
    (void)edges;
    return cuStreamUpdateCaptureDependencies(handle, nodes, count, flags);
}

API CUresult cuThreadExchangeStreamCaptureMode(int *mode)
{
    if (!mode || *mode < 0 || *mode > 2)
        return CUDA_ERROR_INVALID_VALUE;
    int before = thread_mode;
    thread_mode = *mode;
    *mode = before;
    return CUDA_SUCCESS;
}
