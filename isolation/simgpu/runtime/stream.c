/* SPDX-License-Identifier: Apache-2.0 */
/* Streams, events, capture and graphs. */
#include "runtime.h"

API cudaError_t cudaStreamCreateWithPriority(void **stream, unsigned flags, int priority)
{
    ENTER(cu.cuStreamCreateWithPriority(stream, flags, priority));
}

API cudaError_t cudaStreamCreateWithFlags(void **stream, unsigned flags)
{
    return cudaStreamCreateWithPriority(stream, flags, 0);
}

API cudaError_t cudaStreamCreate(void **stream)
{
    return cudaStreamCreateWithPriority(stream, 0, 0);
}

API cudaError_t cudaStreamDestroy(void *stream)
{
    ENTER(cu.cuStreamDestroy(stream));
}

API cudaError_t cudaStreamSynchronize(void *stream)
{
    ENTER(cu.cuStreamSynchronize(stream));
}

API cudaError_t cudaStreamQuery(void *stream)
{
    ENTER(cu.cuStreamQuery(stream));
}

API cudaError_t cudaStreamWaitEvent(void *stream, void *event, unsigned flags)
{
    ENTER(cu.cuStreamWaitEvent(stream, event, flags));
}

API cudaError_t cudaStreamAddCallback(void *stream, void (*function)(void *, cudaError_t, void *), void *data,
                                      unsigned flags)
{
    ENTER(cu.cuStreamAddCallback(stream, function, data, flags));
}

API cudaError_t cudaLaunchHostFunc(void *stream, void (*function)(void *), void *data)
{
    ENTER(cu.cuLaunchHostFunc(stream, function, data));
}

API cudaError_t cudaStreamGetPriority(void *stream, int *priority)
{
    ENTER(cu.cuStreamGetPriority(stream, priority));
}

API cudaError_t cudaStreamGetFlags(void *stream, unsigned *flags)
{
    ENTER(cu.cuStreamGetFlags(stream, flags));
}

API cudaError_t cudaStreamGetId(void *stream, unsigned long long *id)
{
    ENTER(cu.cuStreamGetId(stream, id));
}

API cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest)
{
    ENTER(cu.cuCtxGetStreamPriorityRange(least, greatest));
}

API cudaError_t cudaEventCreateWithFlags(void **event, unsigned flags)
{
    ENTER(cu.cuEventCreate(event, flags));
}

API cudaError_t cudaEventCreate(void **event)
{
    return cudaEventCreateWithFlags(event, 0);
}

API cudaError_t cudaEventDestroy(void *event)
{
    ENTER(cu.cuEventDestroy(event));
}

API cudaError_t cudaEventQuery(void *event)
{
    ENTER(cu.cuEventQuery(event));
}

API cudaError_t cudaEventSynchronize(void *event)
{
    ENTER(cu.cuEventSynchronize(event));
}

API cudaError_t cudaEventRecord(void *event, void *stream)
{
    ENTER(cu.cuEventRecord(event, stream));
}

API cudaError_t cudaEventRecordWithFlags(void *event, void *stream, unsigned flags)
{
    ENTER(cu.cuEventRecordWithFlags(event, stream, flags));
}

API cudaError_t cudaEventElapsedTime(float *ms, void *begin, void *end)
{
    ENTER(cu.cuEventElapsedTime(ms, begin, end));
}

API cudaError_t cudaStreamBeginCapture(void *stream, int mode)
{
    ENTER(cu.cuStreamBeginCapture(stream, mode));
}

API cudaError_t cudaStreamBeginCaptureToGraph(void *stream, void *graph, void *const *after, const void *edges,
                                              size_t count, int mode)
{
    ENTER(cu.cuStreamBeginCaptureToGraph(stream, graph, after, edges, count, mode));
}

API cudaError_t cudaStreamEndCapture(void *stream, void **graph)
{
    ENTER(cu.cuStreamEndCapture(stream, graph));
}

API cudaError_t cudaStreamIsCapturing(void *stream, int *status)
{
    ENTER(cu.cuStreamIsCapturing(stream, status));
}

API cudaError_t cudaThreadExchangeStreamCaptureMode(int *mode)
{
    ENTER(cu.cuThreadExchangeStreamCaptureMode(mode));
}

#if RUNTIME == 12
API cudaError_t cudaStreamGetCaptureInfo_v2(void *stream, int *status, unsigned long long *id, void **graph,
                                            void *const **tips, size_t *count)
{
    ENTER(cu.cuStreamGetCaptureInfo(stream, status, id, graph, tips, count));
}

API cudaError_t cudaStreamUpdateCaptureDependencies(void *stream, void **tips, size_t count, unsigned flags)
{
    ENTER(cu.cuStreamUpdateCaptureDependencies(stream, tips, count, flags));
}

API cudaError_t cudaGraphNodeGetDependencies(void *node, void **after, size_t *count)
{
    ENTER(cu.cuGraphNodeGetDependencies(node, after, count));
}
#else
API cudaError_t cudaStreamGetCaptureInfo(void *stream, int *status, unsigned long long *id, void **graph,
                                         void *const **tips, const void **edges, size_t *count)
{
    ENTER(cu.cuStreamGetCaptureInfo(stream, status, id, graph, tips, edges, count));
}

API cudaError_t cudaStreamUpdateCaptureDependencies(void *stream, void **tips, const void *edges, size_t count,
                                                    unsigned flags)
{
    ENTER(cu.cuStreamUpdateCaptureDependencies(stream, tips, edges, count, flags));
}

API cudaError_t cudaGraphNodeGetDependencies(void *node, void **after, void *edges, size_t *count)
{
    ENTER(cu.cuGraphNodeGetDependencies(node, after, edges, count));
}
#endif

API cudaError_t cudaGraphCreate(void **graph, unsigned flags)
{
    ENTER(cu.cuGraphCreate(graph, flags));
}

API cudaError_t cudaGraphDestroy(void *graph)
{
    ENTER(cu.cuGraphDestroy(graph));
}

API cudaError_t cudaGraphGetNodes(void *graph, void **nodes, size_t *count)
{
    ENTER(cu.cuGraphGetNodes(graph, nodes, count));
}

API cudaError_t cudaGraphInstantiateWithFlags(void **exec, void *graph, unsigned long long flags)
{
    ENTER(cu.cuGraphInstantiateWithFlags(exec, graph, flags));
}

API cudaError_t cudaGraphInstantiate(void **exec, void *graph, unsigned long long flags)
{
    return cudaGraphInstantiateWithFlags(exec, graph, flags);
}

API cudaError_t cudaGraphLaunch(void *exec, void *stream)
{
    ENTER(cu.cuGraphLaunch(exec, stream));
}

API cudaError_t cudaGraphUpload(void *exec, void *stream)
{
    ENTER(cu.cuGraphUpload(exec, stream));
}

API cudaError_t cudaGraphExecDestroy(void *exec)
{
    ENTER(cu.cuGraphExecDestroy(exec));
}

API cudaError_t cudaGraphDebugDotPrint(void *graph, const char *path, unsigned flags)
{
    ENTER(cu.cuGraphDebugDotPrint(graph, path, flags));
}

API cudaError_t cudaGraphRetainUserObject(void *graph, void *object, unsigned count, unsigned flags)
{
    ENTER(cu.cuGraphRetainUserObject(graph, object, count, flags));
}

API cudaError_t cudaGraphReleaseUserObject(void *graph, void *object, unsigned count)
{
    ENTER(cu.cuGraphReleaseUserObject(graph, object, count));
}

API cudaError_t cudaUserObjectCreate(void **object, void *data, void (*destroy)(void *), unsigned count,
                                     unsigned flags)
{
    ENTER(cu.cuUserObjectCreate(object, data, destroy, count, flags));
}

API cudaError_t cudaUserObjectRetain(void *object, unsigned count)
{
    ENTER(cu.cuUserObjectRetain(object, count));
}

API cudaError_t cudaUserObjectRelease(void *object, unsigned count)
{
    ENTER(cu.cuUserObjectRelease(object, count));
}

API cudaError_t cudaDeviceGetGraphMemAttribute(int device, int attribute, void *value)
{
    START(cu.cuDeviceGetGraphMemAttribute(device, attribute, value));
}

API cudaError_t cudaDeviceSetGraphMemAttribute(int device, int attribute, void *value)
{
    START(cu.cuDeviceSetGraphMemAttribute(device, attribute, value));
}

API cudaError_t cudaDeviceGraphMemTrim(int device)
{
    START(cu.cuDeviceGraphMemTrim(device));
}
