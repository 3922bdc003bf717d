/* SPDX-License-Identifier: Apache-2.0 */
/* Launches: each waits for its turn where the card's time is promised in part. */
#include "capture.h"
#include "hook.h"
#include "limiter.h"
#include "module.h"
#include "pool.h"

/* Without a compute limit a launch costs a few loads and a coarse clock: one may be promised any time. */
static inline int limited(void)
{
    if (!gs_managed())
        return 0;
    if (!__atomic_load_n(&gs.compute, __ATOMIC_RELAXED))
        gs_refresh(gs_coarse_ns());
    return (int)__atomic_load_n(&gs.compute, __ATOMIC_RELAXED);
}

#define LAUNCH(name, parameters, function, blocks, stream, ...)                                                        \
    GS_API CUresult name parameters                                                                                    \
    {                                                                                                                  \
        __typeof__(&name) real = GS_REAL(name);                                                                        \
        CUresult rc = gs_kernel_ready(function, __func__);                                                             \
        if (GS_UNLIKELY(rc != CUDA_SUCCESS))                                                                           \
            return rc;                                                                                                 \
        if (!limited())                                                                                                \
            return real(__VA_ARGS__);                                                                                  \
        struct gs_launch launch;                                                                                       \
        gs_launch_begin(&launch, (uint64_t)(function), blocks, stream);                                                \
        rc = real(__VA_ARGS__);                                                                                        \
        gs_launch_end(&launch, rc);                                                                                    \
        return rc;                                                                                                     \
    }

#define KERNEL                                                                                                         \
    CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared,       \
        CUstream stream, void **parameters
#define OWN(stream) ((stream) ? (stream) : CU_STREAM_PER_THREAD)

LAUNCH(cuLaunchKernel, (KERNEL, void **extra), f, (uint64_t)gx *gy *gz, stream, f, gx, gy, gz, bx, by, bz, shared,
       stream, parameters, extra)
LAUNCH(cuLaunchKernel_ptsz, (KERNEL, void **extra), f, (uint64_t)gx *gy *gz, OWN(stream), f, gx, gy, gz, bx, by, bz,
       shared, stream, parameters, extra)
LAUNCH(cuLaunchCooperativeKernel, (KERNEL), f, (uint64_t)gx *gy *gz, stream, f, gx, gy, gz, bx, by, bz, shared, stream,
       parameters)
LAUNCH(cuLaunchCooperativeKernel_ptsz, (KERNEL), f, (uint64_t)gx *gy *gz, OWN(stream), f, gx, gy, gz, bx, by, bz,
       shared, stream, parameters)

#define CONFIG const struct cu_launch_config *c, CUfunction f, void **parameters, void **extra
#define BLOCKS(c) ((c) ? (uint64_t)(c)->grid[0] * (c)->grid[1] * (c)->grid[2] : 0)

LAUNCH(cuLaunchKernelEx, (CONFIG), f, BLOCKS(c), c ? c->stream : NULL, c, f, parameters, extra)
LAUNCH(cuLaunchKernelEx_ptsz, (CONFIG), f, BLOCKS(c), OWN(c ? c->stream : NULL), c, f, parameters, extra)
LAUNCH(cuLaunch, (CUfunction f), f, 1, NULL, f)
LAUNCH(cuLaunchGrid, (CUfunction f, int width, int height), f, (uint64_t)width *(uint64_t)height, NULL, f, width,
       height)
LAUNCH(cuLaunchGridAsync, (CUfunction f, int width, int height, CUstream stream), f,
       (uint64_t)width *(uint64_t)height, stream, f, width, height, stream)
LAUNCH(cuLaunchCooperativeKernelMultiDevice, (struct cu_launch_params * list, unsigned number, unsigned flags),
       list &&number ? list->function : NULL, 1, list &&number ? list->stream : NULL, list, number, flags)

/* A graph is one launch of a cost of its own. Memory that its nodes take is charged before and read
 * afterwards; past the promise the graph is waited for, its memory trimmed, and the next launch refused. */
static CUresult graph(CUgraphExec it, CUstream stream, CUstream timed, CUresult (*real)(CUgraphExec, CUstream),
                      const char *api)
{
    struct gs_launch launch = {0};
    struct gs_pool_call guess;
    uint64_t bytes;
    CUresult rc = CUDA_SUCCESS;
    if (!gs_managed())
        return real(it, stream);
    if (gs_graphs_over()) {
        gs_breach(GS_BREACH_DENIED, gs_card_here(), 0, api);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    struct gs_pool *pool = gs_graph_pool(it, &bytes);
    if (pool && (rc = gs_pool_begin(pool, bytes, &guess, api)) != CUDA_SUCCESS)
        return rc;
    if (limited())
        gs_launch_begin(&launch, (uint64_t)it, 1, timed);
    rc = real(it, stream);
    gs_launch_end(&launch, rc);
    if (pool && rc == CUDA_SUCCESS && !gs_pool_fits(&guess, 0)) {
        GS_REAL(cuStreamSynchronize)(stream);
        gs_breach(GS_BREACH_OVER, pool->card, bytes, api);
    }
    if (pool)
        gs_pool_end(&guess);
    return rc;
}

GS_API CUresult cuGraphLaunch(CUgraphExec it, CUstream stream)
{
    return graph(it, stream, stream, GS_REAL(cuGraphLaunch), __func__);
}

GS_API CUresult cuGraphLaunch_ptsz(CUgraphExec it, CUstream stream)
{
    return graph(it, stream, OWN(stream), GS_REAL(cuGraphLaunch_ptsz), __func__);
}

/* Counted before it begins: no other thread may think that nothing is captured. */
#define CAPTURE(name, parameters, ...)                                                                                 \
    GS_API CUresult name parameters                                                                                    \
    {                                                                                                                  \
        gs_capture_began();                                                                                            \
        CUresult rc = GS_REAL(name)(__VA_ARGS__);                                                                      \
        if (rc != CUDA_SUCCESS)                                                                                        \
            gs_capture_ended();                                                                                        \
        return rc;                                                                                                     \
    }
/* A stream that was not captured, or by another thread, ends nobody's capture. */
#define CAPTURED(name)                                                                                                 \
    GS_API CUresult name(CUstream stream, CUgraph *made)                                                               \
    {                                                                                                                  \
        CUresult rc = GS_REAL(name)(stream, made);                                                                     \
        if (rc == CUDA_SUCCESS || rc == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED ||                                       \
            rc == CUDA_ERROR_STREAM_CAPTURE_UNJOINED)                                                                  \
            gs_capture_ended();                                                                                        \
        return rc;                                                                                                     \
    }
#define TO_GRAPH                                                                                                       \
    CUstream stream, CUgraph graph, const CUgraphNode *after, const void *edges, size_t number, int mode

CAPTURE(cuStreamBeginCapture, (CUstream stream), stream)
CAPTURE(cuStreamBeginCapture_ptsz, (CUstream stream), stream)
CAPTURE(cuStreamBeginCapture_v2, (CUstream stream, int mode), stream, mode)
CAPTURE(cuStreamBeginCapture_v2_ptsz, (CUstream stream, int mode), stream, mode)
CAPTURE(cuStreamBeginCaptureToGraph, (TO_GRAPH), stream, graph, after, edges, number, mode)
CAPTURE(cuStreamBeginCaptureToGraph_ptsz, (TO_GRAPH), stream, graph, after, edges, number, mode)
CAPTURE(cuStreamBeginRecaptureToGraph, (CUstream stream, int mode, CUgraph graph, void *differs, void *data), stream,
        mode, graph, differs, data)
CAPTURED(cuStreamEndCapture)
CAPTURED(cuStreamEndCapture_ptsz)

/* What goes into a graphics command list (CUDA in Graphics) is recorded too, and ends by a call of its own. Nothing
 * says that cuStreamIsCapturing() tells of it, so the streams are remembered. */
GS_API CUresult cuStreamBeginCaptureToCig(CUstream stream, void *how)
{
    gs_capture_began();
    CUresult rc = GS_REAL(cuStreamBeginCaptureToCig)(stream, how);
    struct gs_entry entry = {.key = (uint64_t)stream, .kind = GS_KIND_CIG};
    if (rc == CUDA_SUCCESS)
        (void)gs_table_put(&entry);
    else
        gs_capture_ended();
    return rc;
}

GS_API CUresult cuStreamEndCaptureToCig(CUstream stream)
{
    struct gs_entry entry;
    CUresult rc = GS_REAL(cuStreamEndCaptureToCig)(stream);
    if (rc == CUDA_SUCCESS && gs_table_take((uint64_t)stream, GS_KIND_CIG, &entry) == 0)
        gs_capture_ended();
    return rc;
}
