/* SPDX-License-Identifier: Apache-2.0 */
/* Executable graphs. One launch is one piece of work that takes as long as the graph's critical
 * path; graphs with host functions or events run node by node instead.
 * Return convention: CUresult.
 */
#include "device.h"
#include "event.h"
#include "graph.h"
#include "memory.h"
#include "pool.h"
#include "sim.h"
#include "stream.h"

#include <stdlib.h>
#include <string.h>

struct sim_exec {
    uint32_t tag;
    struct sim_graph *graph; /* a copy of its own, in an order that respects the edges */
    struct sim_node **order;
    size_t nodes;
    uint64_t flags, id;
    int stepwise;
};

static uint64_t exec_ids;

API CUresult cuGraphClone(struct sim_graph **made, void *handle);
API CUresult cuGraphDestroy(void *handle);

static struct sim_exec *exec_check(void *handle)
{
    struct sim_exec *exec = handle;
    return exec && exec->tag == SIM_EXEC ? exec : NULL;
}

/* Order the nodes so that each comes after all it waits for; 0 where there is a cycle. */
static int sort(struct sim_graph *graph, struct sim_node **order)
{
    size_t placed = 0;
    for (struct sim_node *node = graph->first; node; node = node->next)
        node->finish_ns = UINT64_MAX; /* not placed yet */
    for (size_t before = 1; placed < graph->nodes && before; ) {
        before = 0;
        for (struct sim_node *node = graph->first; node; node = node->next) {
            int ready = node->finish_ns == UINT64_MAX;
            for (size_t i = 0; ready && i < node->afters; i++)
                ready = node->after[i]->finish_ns != UINT64_MAX;
            if (!ready)
                continue;
            node->finish_ns = 0;
            order[placed++] = node;
            before++;
        }
    }
    return placed == graph->nodes;
}

/* Length of the critical path and the widest kernel.  pre: the nodes are in order. */
static uint64_t critical_path(struct sim_node *const *order, size_t nodes, uint64_t *width)
{
    uint64_t longest = 0;
    for (size_t i = 0; i < nodes; i++) {
        struct sim_node *node = order[i];
        uint64_t start = 0, own = node->disabled ? 0 : node->work.left_ns, wide = node->work.width;
        for (size_t k = 0; k < node->afters; k++)
            start = node->after[k]->finish_ns > start ? node->after[k]->finish_ns : start;
        if (node->type == CU_NODE_GRAPH)
            own = sim_graph_cost(node->child, &wide);
        *width = wide > *width ? wide : *width;
        node->finish_ns = start + own;
        longest = node->finish_ns > longest ? node->finish_ns : longest;
    }
    return longest;
}

/* What a child graph takes. */
uint64_t sim_graph_cost(const struct sim_graph *graph, uint64_t *width)
{
    struct sim_node **order = sim_new((graph->nodes + 1) * sizeof *order);
    uint64_t ns = sort((struct sim_graph *)graph, order) ? critical_path(order, graph->nodes, width) : 0;
    free(order);
    return ns;
}

static CUresult instantiate(struct sim_exec **made, void *handle, uint64_t flags)
{
    ENTER();
    LOCKED();
    struct sim_graph *graph = sim_graph_check(handle);
    if (!made || !graph)
        return CUDA_ERROR_INVALID_VALUE;
    struct sim_exec *exec = sim_new(sizeof *exec);
    *exec = (struct sim_exec){.tag = SIM_EXEC, .flags = flags, .id = ++exec_ids};
    TRY(cuGraphClone(&exec->graph, graph));
    exec->nodes = graph->nodes;
    exec->order = sim_new((exec->nodes + 1) * sizeof *exec->order);
    if (!sort(exec->graph, exec->order)) {
        exec->tag = SIM_DEAD;
        return CUDA_ERROR_INVALID_VALUE;
    }
    for (size_t i = 0; i < exec->nodes; i++) {
        enum cu_node type = exec->order[i]->type;
        if (type == CU_NODE_HOST || type == CU_NODE_EVENT_RECORD || type == CU_NODE_WAIT_EVENT)
            exec->stepwise = 1;
    }
    *made = exec;
    return CUDA_SUCCESS;
}

API CUresult cuGraphInstantiateWithFlags(struct sim_exec **made, void *graph, unsigned long long flags)
{
    return instantiate(made, graph, flags);
}

API CUresult cuGraphInstantiate_v2(struct sim_exec **made, void *graph, void **error, char *log, size_t size)
{
    (void)error;
    if (log && size)
        *log = 0;
    return instantiate(made, graph, 0);
}

API CUresult cuGraphInstantiate(struct sim_exec **made, void *graph, void **error, char *log, size_t size)
{
    return cuGraphInstantiate_v2(made, graph, error, log, size);
}

struct instantiate_params { /* CUDA_GRAPH_INSTANTIATE_PARAMS */
    uint64_t flags;
    void *upload, *error;
    int result;
};

API CUresult cuGraphInstantiateWithParams(struct sim_exec **made, void *graph, struct instantiate_params *params)
{
    if (!params)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = instantiate(made, graph, params->flags);
    params->error = NULL;
    params->result = result ? 1 : 0;
    return result;
}

API CUresult cuGraphExecDestroy(void *handle)
{
    ENTER();
    LOCKED();
    struct sim_exec *exec = exec_check(handle);
    if (!exec)
        return CUDA_ERROR_INVALID_VALUE;
    cuGraphDestroy(exec->graph);
    free(exec->order);
    exec->tag = SIM_DEAD;
    return CUDA_SUCCESS;
}

API CUresult cuGraphExecGetFlags(void *handle, uint64_t *flags)
{
    ENTER();
    struct sim_exec *exec = exec_check(handle);
    if (!exec || !flags)
        return CUDA_ERROR_INVALID_VALUE;
    *flags = exec->flags;
    return CUDA_SUCCESS;
}

API CUresult cuGraphUpload(void *handle, void *stream)
{
    ENTER();
    struct sim_stream *found;
    TRY(sim_stream_of(stream, &found));
    return exec_check(handle) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* Take what the graph's allocation nodes need, give what its free nodes free. */
static CUresult memory(struct sim_exec *exec, struct sim_device *device)
{
    LOCKED();
    for (size_t i = 0; i < exec->nodes; i++) {
        struct sim_node *node = exec->order[i];
        struct sim_range *range = node->pointer ? sim_range_at(node->pointer) : NULL;
        if (!range)
            continue;
        uint64_t whole = sim_round(node->bytes, 512);
        if (node->type == CU_NODE_MEM_ALLOC && !range->charged_bytes) {
            TRY(sim_pool_take(&device->graph_pool, whole));
            range->charged_bytes = whole;
        } else if (node->type == CU_NODE_MEM_FREE) {
            TRY(sim_free(range));
        }
    }
    return CUDA_SUCCESS;
}

/* Fills happen when the graph is launched. */
static CUresult contents(const struct sim_exec *exec)
{
    for (size_t i = 0; i < exec->nodes; i++) {
        const struct sim_node *node = exec->order[i];
        const struct cu_memset_node *fill = &node->fill;
        uint64_t ns;
        if (node->type == CU_NODE_MEMSET && fill->to)
            TRY(sim_fill(fill->to, fill->pitch, fill->value, fill->element, fill->width, fill->height));
        if (node->type == CU_NODE_MEMCPY && node->copy.width)
            TRY(sim_move3(&node->copy, &ns));
    }
    return CUDA_SUCCESS;
}

API CUresult cuEventRecord(struct sim_event *event, void *stream);
API CUresult cuStreamWaitEvent(void *stream, struct sim_event *event, unsigned flags);
API CUresult cuLaunchHostFunc(void *stream, cu_host_fn fn, void *data);

/* Run the nodes one after the other in the stream. */
static CUresult run_steps(struct sim_exec *exec, struct sim_stream *stream)
{
    for (size_t i = 0; i < exec->nodes; i++) {
        struct sim_node *node = exec->order[i];
        struct hw_item work = node->work;
        if (node->disabled)
            continue;
        if (node->type == CU_NODE_HOST) {
            TRY(cuLaunchHostFunc(stream, node->host.fn, node->host.data));
        } else if (node->type == CU_NODE_EVENT_RECORD) {
            TRY(cuEventRecord(node->event, stream));
        } else if (node->type == CU_NODE_WAIT_EVENT) {
            TRY(cuStreamWaitEvent(stream, node->event, 0));
        } else if (node->type == CU_NODE_GRAPH) {
            work = (struct hw_item){.work = HW_KERNEL};
            work.left_ns = sim_graph_cost(node->child, &work.width);
            TRY(sim_submit(stream, &work, NULL, NULL));
        } else if (work.left_ns) {
            TRY(sim_submit(stream, &work, NULL, NULL));
        }
    }
    return CUDA_SUCCESS;
}

/* Launch into a stream that is not being captured. */
CUresult sim_exec_launch(void *handle, struct sim_stream *stream)
{
    struct sim_exec *exec = exec_check(handle);
    if (!exec)
        return CUDA_ERROR_INVALID_VALUE;
    hw_spin(sim_params()->launch_ns);
    TRY(memory(exec, sim_device_of(stream->context)));
    TRY(contents(exec));
    if (exec->stepwise)
        return run_steps(exec, stream);
    struct hw_item work = {.work = HW_COPY};
    work.left_ns = critical_path(exec->order, exec->nodes, &work.width);
    if (work.width) /* there are kernels in it */
        work.work = HW_KERNEL;
    for (size_t i = 0; i < exec->nodes; i++)
        work.fault = exec->order[i]->work.fault ? exec->order[i]->work.fault : work.fault;
    if (!work.left_ns)
        work.work = HW_MARK;
    return sim_submit(stream, &work, NULL, NULL);
}

API CUresult cuGraphLaunch(void *handle, void *stream_handle)
{
    ENTER();
    struct sim_stream *stream;
    TRY(sim_stream_of(stream_handle, &stream));
    struct sim_exec *exec = exec_check(handle);
    if (!exec)
        return CUDA_ERROR_INVALID_VALUE;
    if (!stream->capture)
        return sim_exec_launch(exec, stream);
    LOCKED();
    struct sim_node *node;
    TRY(sim_capture_node(stream, CU_NODE_GRAPH, &node));
    node->child = exec->graph;
    return CUDA_SUCCESS;
}

/* The node of an exec that stands for a node of its graph. */
static struct sim_node *node_in(void *handle, const void *original)
{
    struct sim_exec *exec = exec_check(handle);
    for (size_t i = 0; exec && i < exec->nodes; i++)
        if (exec->order[i]->original == original)
            return exec->order[i];
    return NULL;
}

API CUresult cuGraphExecKernelNodeSetParams_v2(void *handle, void *original, const struct cu_kernel_node *params)
{
    ENTER();
    LOCKED();
    struct sim_node *node = node_in(handle, original);
    return node && node->type == CU_NODE_KERNEL ? sim_node_kernel(node, params) : CUDA_ERROR_INVALID_VALUE;
}

API CUresult cuGraphNodeSetEnabled(void *handle, void *original, unsigned enabled)
{
    ENTER();
    LOCKED();
    struct sim_node *node = node_in(handle, original);
    if (!node)
        return CUDA_ERROR_INVALID_VALUE;
    node->disabled = !enabled;
    return CUDA_SUCCESS;
}

struct update_result { /* CUgraphExecUpdateResultInfo */
    int result;
    void *error, *error_from;
};

/* Take over the figures of a graph of the same shape; a different shape is refused. */
API CUresult cuGraphExecUpdate_v2(void *handle, void *graph_handle, struct update_result *info)
{
    ENTER();
    LOCKED();
    struct sim_exec *exec = exec_check(handle);
    struct sim_graph *graph = sim_graph_check(graph_handle);
    if (!exec || !graph || !info)
        return CUDA_ERROR_INVALID_VALUE;
    *info = (struct update_result){0};
    struct sim_node *from = graph->first, *to = exec->graph->first;
    for (; from && to && from->type == to->type && from->afters == to->afters; from = from->next, to = to->next)
        continue;
    if (from || to) {
        info->result = 2; /* topology changed */
        return CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
    }
    for (from = graph->first, to = exec->graph->first; from; from = from->next, to = to->next) {
        to->work = from->work;
        to->kernel = from->kernel;
        to->fill = from->fill;
        to->copy = from->copy;
        to->host = from->host;
        to->original = from;
    }
    return CUDA_SUCCESS;
}
