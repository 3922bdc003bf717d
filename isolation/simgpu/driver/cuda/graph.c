/* SPDX-License-Identifier: Apache-2.0 */
/* Graphs as they are built: nodes and what each waits for.
 * Return convention: CUresult. */
#include "context.h"
#include "device.h"
#include "event.h"
#include "graph.h"
#include "memory.h"
#include "module.h"
#include "sim.h"

#include <stdlib.h>
#include <string.h>

static struct sim_node *spare; /* destroyed nodes, for use again: handles stay readable */
static uint64_t node_ids, graph_ids;

struct sim_graph *sim_graph_check(void *handle)
{
    struct sim_graph *graph = handle;
    return graph && graph->tag == SIM_GRAPH ? graph : NULL;
}

struct sim_node *sim_node_check(void *handle)
{
    struct sim_node *node = handle;
    return node && node->tag == SIM_NODE ? node : NULL;
}

struct sim_graph *sim_graph_new(void)
{
    struct sim_graph *graph = sim_new(sizeof *graph);
    *graph = (struct sim_graph){.tag = SIM_GRAPH, .id = ++graph_ids};
    return graph;
}

/* `node` waits for `on`; once. */
void sim_node_depend(struct sim_node *node, struct sim_node *on)
{
    for (size_t i = 0; i < node->afters; i++)
        if (node->after[i] == on)
            return;
    node->after = realloc(node->after, (node->afters + 1) * sizeof *node->after);
    if (!node->after)
        abort();
    node->after[node->afters++] = on;
}

/* Append a node that waits for `count` others. */
struct sim_node *sim_node_new(struct sim_graph *graph, enum cu_node type, struct sim_node *const *after, size_t count)
{
    struct sim_node *node = spare;
    if (node)
        spare = node->next;
    else
        node = sim_new(sizeof *node);
    *node = (struct sim_node){.tag = SIM_NODE, .type = type, .graph = graph, .id = ++node_ids};
    for (size_t i = 0; i < count; i++)
        sim_node_depend(node, after[i]);
    if (graph->last)
        graph->last->next = node;
    else
        graph->first = node;
    graph->last = node;
    graph->nodes++;
    return node;
}

static void node_end(struct sim_node *node)
{
    free(node->after);
    *node = (struct sim_node){.tag = SIM_DEAD, .next = spare};
    spare = node;
}

API CUresult cuGraphCreate(struct sim_graph **graph, unsigned flags)
{
    ENTER();
    if (!graph || flags)
        return CUDA_ERROR_INVALID_VALUE;
    LOCKED();
    *graph = sim_graph_new();
    return CUDA_SUCCESS;
}

/* End all nodes of a graph. */
void sim_graph_clear(struct sim_graph *graph)
{
    for (struct sim_node *node = graph->first, *next; node; node = next) {
        next = node->next;
        node_end(node);
    }
    graph->first = graph->last = NULL;
    graph->nodes = 0;
}

API CUresult cuGraphDestroy(void *handle)
{
    ENTER();
    LOCKED();
    struct sim_graph *graph = sim_graph_check(handle);
    if (!graph)
        return CUDA_ERROR_INVALID_VALUE;
    sim_graph_clear(graph);
    sim_users_end(&graph->users);
    graph->tag = SIM_DEAD;
    return CUDA_SUCCESS;
}

API CUresult cuGraphDestroyNode(void *handle)
{
    ENTER();
    LOCKED();
    struct sim_node *gone = sim_node_check(handle);
    if (!gone)
        return CUDA_ERROR_INVALID_VALUE;
    struct sim_graph *graph = gone->graph;
    for (struct sim_node *node = graph->first, *before = NULL; node; before = node, node = node->next) {
        for (size_t i = 0; i < node->afters; i++)
            if (node->after[i] == gone)
                node->after[i] = node->after[--node->afters];
        if (node->next == gone || node == gone) {
            struct sim_node **link = node == gone ? (before ? &before->next : &graph->first) : &node->next;
            *link = gone->next;
            if (graph->last == gone)
                graph->last = node == gone ? before : node;
        }
    }
    graph->nodes--;
    node_end(gone);
    return CUDA_SUCCESS;
}

/* A new node after checked dependencies. */
static CUresult add(struct sim_node **made, void *handle, struct sim_node *const *after, size_t count,
                    enum cu_node type)
{
    struct sim_graph *graph = sim_graph_check(handle);
    if (!made || !graph || (count && !after))
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < count; i++)
        if (!sim_node_check(after[i]) || after[i]->graph != graph)
            return CUDA_ERROR_INVALID_VALUE;
    *made = sim_node_new(graph, type, after, count);
    return CUDA_SUCCESS;
}

API CUresult cuKernelGetFunction(struct sim_function **function, void *handle);

/* Set what a kernel node runs; its duration is read from its parameters now. */
CUresult sim_node_kernel(struct sim_node *node, const struct cu_kernel_node *params)
{
    struct sim_context *context;
    TRY(sim_current(&context));
    void *handle = params && !params->function ? params->kernel : params ? params->function : NULL;
    struct sim_function *function = sim_function_check(handle);
    if (!function)
        return CUDA_ERROR_INVALID_VALUE;
    if (!function->module->context)
        TRY(cuKernelGetFunction(&function, function));
    TRY(sim_cost(function, sim_device_of(context), params->grid, params->block, params->params, params->extra,
                 &node->work));
    node->kernel = *params;
    node->kernel.params = node->kernel.extra = NULL;
    return CUDA_SUCCESS;
}

API CUresult cuGraphAddKernelNode_v2(struct sim_node **made, void *graph, struct sim_node *const *after, size_t count,
                                     const struct cu_kernel_node *params)
{
    ENTER();
    LOCKED();
    struct sim_node trial = {.tag = SIM_NODE};
    TRY(sim_node_kernel(&trial, params));
    TRY(add(made, graph, after, count, CU_NODE_KERNEL));
    (*made)->work = trial.work;
    (*made)->kernel = trial.kernel;
    return CUDA_SUCCESS;
}

/* The first form of the params ends before `kernel`. */
API CUresult cuGraphAddKernelNode(struct sim_node **made, void *graph, struct sim_node *const *after, size_t count,
                                  const struct cu_kernel_node *params)
{
    struct cu_kernel_node full = {0};
    if (!params)
        return CUDA_ERROR_INVALID_VALUE;
    memcpy(&full, params, offsetof(struct cu_kernel_node, kernel));
    return cuGraphAddKernelNode_v2(made, graph, after, count, &full);
}

API CUresult cuGraphKernelNodeGetParams_v2(void *handle, struct cu_kernel_node *params)
{
    ENTER();
    struct sim_node *node = sim_node_check(handle);
    if (!node || !params || node->type != CU_NODE_KERNEL)
        return CUDA_ERROR_INVALID_VALUE;
    *params = node->kernel;
    return CUDA_SUCCESS;
}

API CUresult cuGraphKernelNodeSetParams_v2(void *handle, const struct cu_kernel_node *params)
{
    ENTER();
    LOCKED();
    struct sim_node *node = sim_node_check(handle);
    return node && node->type == CU_NODE_KERNEL ? sim_node_kernel(node, params) : CUDA_ERROR_INVALID_VALUE;
}

API CUresult cuGraphAddMemcpyNode(struct sim_node **made, void *graph, struct sim_node *const *after, size_t count,
                                  const struct cu_copy3 *copy, void *context)
{
    ENTER();
    (void)context;
    LOCKED();
    struct hw_item work = {.work = HW_COPY};
    if (!copy)
        return CUDA_ERROR_INVALID_VALUE;
    TRY(sim_move3(copy, &work.left_ns));
    TRY(add(made, graph, after, count, CU_NODE_MEMCPY));
    (*made)->work = work;
    (*made)->copy = *copy;
    return CUDA_SUCCESS;
}

API CUresult cuGraphAddMemsetNode(struct sim_node **made, void *graph, struct sim_node *const *after, size_t count,
                                  const struct cu_memset_node *fill, void *context)
{
    ENTER();
    (void)context;
    LOCKED();
    struct sim_context *current;
    TRY(sim_current(&current));
    if (!fill)
        return CUDA_ERROR_INVALID_VALUE;
    TRY(add(made, graph, after, count, CU_NODE_MEMSET));
    uint64_t bytes = fill->width * fill->height * fill->element;
    (*made)->fill = *fill;
    (*made)->work = (struct hw_item){.work = HW_COPY};
    (*made)->work.left_ns = sim_copy_ns(sim_device_of(current), fill->to, fill->to, bytes);
    return CUDA_SUCCESS;
}

API CUresult cuGraphAddHostNode(struct sim_node **made, void *graph, struct sim_node *const *after, size_t count,
                                const struct cu_host_node *host)
{
    ENTER();
    LOCKED();
    if (!host || !host->fn)
        return CUDA_ERROR_INVALID_VALUE;
    TRY(add(made, graph, after, count, CU_NODE_HOST));
    (*made)->host = *host;
    return CUDA_SUCCESS;
}

API CUresult cuGraphAddEmptyNode(struct sim_node **made, void *graph, struct sim_node *const *after, size_t count)
{
    ENTER();
    LOCKED();
    return add(made, graph, after, count, CU_NODE_EMPTY);
}

API CUresult cuGraphAddChildGraphNode(struct sim_node **made, void *graph, struct sim_node *const *after,
                                      size_t count, void *child)
{
    ENTER();
    LOCKED();
    if (!sim_graph_check(child) || child == graph)
        return CUDA_ERROR_INVALID_VALUE;
    TRY(add(made, graph, after, count, CU_NODE_GRAPH));
    (*made)->child = child;
    return CUDA_SUCCESS;
}

static CUresult add_event(struct sim_node **made, void *graph, struct sim_node *const *after, size_t count,
                          struct sim_event *event, enum cu_node type)
{
    ENTER();
    LOCKED();
    if (!event || event->tag != SIM_EVENT)
        return CUDA_ERROR_INVALID_VALUE;
    TRY(add(made, graph, after, count, type));
    (*made)->event = event;
    return CUDA_SUCCESS;
}

API CUresult cuGraphAddEventRecordNode(struct sim_node **made, void *graph, struct sim_node *const *after,
                                       size_t count, struct sim_event *event)
{
    return add_event(made, graph, after, count, event, CU_NODE_EVENT_RECORD);
}

API CUresult cuGraphAddEventWaitNode(struct sim_node **made, void *graph, struct sim_node *const *after,
                                     size_t count, struct sim_event *event)
{
    return add_event(made, graph, after, count, event, CU_NODE_WAIT_EVENT);
}

/* A node that allocates: the address is fixed now, the memory is taken at each launch. */
API CUresult cuGraphAddMemAllocNode(struct sim_node **made, void *graph, struct sim_node *const *after, size_t count,
                                    struct cu_alloc_node *params)
{
    ENTER();
    LOCKED();
    struct sim_context *context;
    TRY(sim_current(&context));
    if (!params || !params->bytes)
        return CUDA_ERROR_INVALID_VALUE;
    TRY(add(made, graph, after, count, CU_NODE_MEM_ALLOC));
    struct sim_range *range = sim_range_new(SIM_RANGE_GRAPH, context, params->bytes);
    if (!range)
        return CUDA_ERROR_OUT_OF_MEMORY;
    params->pointer = (*made)->pointer = range->base;
    (*made)->bytes = params->bytes;
    return CUDA_SUCCESS;
}

API CUresult cuGraphAddMemFreeNode(struct sim_node **made, void *graph, struct sim_node *const *after, size_t count,
                                   CUdeviceptr pointer)
{
    ENTER();
    LOCKED();
    TRY(add(made, graph, after, count, CU_NODE_MEM_FREE));
    (*made)->pointer = pointer;
    return CUDA_SUCCESS;
}

/* The general form: a type, 12 bytes unused, then that type's params. */
static CUresult add_node(struct sim_node **made, void *graph, struct sim_node *const *after, size_t count, char *params)
{
    if (!params)
        return CUDA_ERROR_INVALID_VALUE;
    void *body = params + 16;
    int type;
    memcpy(&type, params, sizeof type);
    switch (type) {
    case CU_NODE_KERNEL: return cuGraphAddKernelNode_v2(made, graph, after, count, body);
    case CU_NODE_MEMCPY: return cuGraphAddMemcpyNode(made, graph, after, count, (void *)(params + 32), NULL);
    case CU_NODE_MEMSET: return cuGraphAddMemsetNode(made, graph, after, count, body, NULL);
    case CU_NODE_HOST: return cuGraphAddHostNode(made, graph, after, count, body);
    case CU_NODE_GRAPH: return cuGraphAddChildGraphNode(made, graph, after, count, *(void **)body);
    case CU_NODE_EMPTY: return cuGraphAddEmptyNode(made, graph, after, count);
    case CU_NODE_WAIT_EVENT: return cuGraphAddEventWaitNode(made, graph, after, count, *(void **)body);
    case CU_NODE_EVENT_RECORD: return cuGraphAddEventRecordNode(made, graph, after, count, *(void **)body);
    case CU_NODE_MEM_ALLOC: return cuGraphAddMemAllocNode(made, graph, after, count, body);
    case CU_NODE_MEM_FREE: return cuGraphAddMemFreeNode(made, graph, after, count, *(CUdeviceptr *)body);
    default: return CUDA_ERROR_NOT_SUPPORTED;
    }
}

API CUresult cuGraphAddNode(struct sim_node **made, void *graph, struct sim_node *const *after, size_t count,
                            void *params)
{
    return add_node(made, graph, after, count, params);
}

API CUresult cuGraphAddNode_v2(struct sim_node **made, void *graph, struct sim_node *const *after, const void *edges,
                               size_t count, void *params)
{
    (void)edges;
    return add_node(made, graph, after, count, params);
}

API CUresult cuGraphAddNode_v3(struct sim_node **made, void *graph, struct sim_node *const *after, const void *edges,
                               size_t count, void *params)
{
    (void)edges;
    return add_node(made, graph, after, count, params);
}
