/* SPDX-License-Identifier: Apache-2.0 */
/* What can be asked of a graph and its nodes, and edges added or removed later.
 * Return convention: CUresult. */
#include "graph.h"
#include "sim.h"

/* Copy up to `*count` handles out, or tell how many there are where `out` is NULL. */
static CUresult list(struct sim_node **out, size_t *count, struct sim_node *const *have, size_t number)
{
    if (!count)
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; out && i < *count; i++)
        out[i] = i < number ? have[i] : NULL;
    if (!out || *count > number)
        *count = number;
    return CUDA_SUCCESS;
}

/* All nodes (or those that wait for nothing) in the order they were added. */
static CUresult list_nodes(void *handle, struct sim_node **out, size_t *count, int roots)
{
    ENTER();
    LOCKED();
    struct sim_graph *graph = sim_graph_check(handle);
    if (!graph || !count)
        return CUDA_ERROR_INVALID_VALUE;
    size_t found = 0;
    for (struct sim_node *node = graph->first; node; node = node->next) {
        if (roots && node->afters)
            continue;
        if (out && found < *count)
            out[found] = node;
        found++;
    }
    if (!out || *count > found)
        *count = found;
    return CUDA_SUCCESS;
}

API CUresult cuGraphGetNodes(void *graph, struct sim_node **nodes, size_t *count)
{
    return list_nodes(graph, nodes, count, 0);
}

API CUresult cuGraphGetRootNodes(void *graph, struct sim_node **nodes, size_t *count)
{
    return list_nodes(graph, nodes, count, 1);
}

API CUresult cuGraphNodeGetType(void *handle, int *type)
{
    ENTER();
    struct sim_node *node = sim_node_check(handle);
    if (!node || !type)
        return CUDA_ERROR_INVALID_VALUE;
    *type = (int)node->type;
    return CUDA_SUCCESS;
}

API CUresult cuGraphNodeGetDependencies(void *handle, struct sim_node **out, size_t *count)
{
    ENTER();
    LOCKED();
    struct sim_node *node = sim_node_check(handle);
    return node ? list(out, count, node->after, node->afters) : CUDA_ERROR_INVALID_VALUE;
}

API CUresult cuGraphNodeGetDependencies_v2(void *handle, struct sim_node **out, void *edges, size_t *count)
{
    (void)edges;
    return cuGraphNodeGetDependencies(handle, out, count);
}

API CUresult cuGraphNodeGetDependentNodes(void *handle, struct sim_node **out, size_t *count)
{
    ENTER();
    LOCKED();
    struct sim_node *on = sim_node_check(handle);
    size_t found = 0;
    if (!on || !count)
        return CUDA_ERROR_INVALID_VALUE;
    for (struct sim_node *node = on->graph->first; node; node = node->next)
        for (size_t i = 0; i < node->afters; i++)
            if (node->after[i] == on) {
                if (out && found < *count)
                    out[found] = node;
                found++;
            }
    if (!out || *count > found)
        *count = found;
    return CUDA_SUCCESS;
}

API CUresult cuGraphNodeGetDependentNodes_v2(void *handle, struct sim_node **out, void *edges, size_t *count)
{
    (void)edges;
    return cuGraphNodeGetDependentNodes(handle, out, count);
}

API CUresult cuGraphGetEdges(void *handle, struct sim_node **from, struct sim_node **to, size_t *count)
{
    ENTER();
    LOCKED();
    struct sim_graph *graph = sim_graph_check(handle);
    size_t found = 0;
    if (!graph || !count)
        return CUDA_ERROR_INVALID_VALUE;
    for (struct sim_node *node = graph->first; node; node = node->next)
        for (size_t i = 0; i < node->afters; i++, found++)
            if (from && to && found < *count) {
                from[found] = node->after[i];
                to[found] = node;
            }
    if (!from || *count > found)
        *count = found;
    return CUDA_SUCCESS;
}

API CUresult cuGraphGetEdges_v2(void *graph, struct sim_node **from, struct sim_node **to, void *edges, size_t *count)
{
    (void)edges;
    return cuGraphGetEdges(graph, from, to, count);
}

API CUresult cuGraphAddDependencies(void *graph, struct sim_node *const *from, struct sim_node *const *to, size_t count)
{
    ENTER();
    LOCKED();
    if (!sim_graph_check(graph))
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < count; i++) {
        if (!sim_node_check(from[i]) || !sim_node_check(to[i]))
            return CUDA_ERROR_INVALID_VALUE;
        sim_node_depend(to[i], from[i]);
    }
    return CUDA_SUCCESS;
}

API CUresult cuGraphAddDependencies_v2(void *graph, struct sim_node *const *from, struct sim_node *const *to,
                                       const void *edges, size_t count)
{
    (void)edges;
    return cuGraphAddDependencies(graph, from, to, count);
}

API CUresult cuGraphRemoveDependencies(void *graph, struct sim_node *const *from, struct sim_node *const *to,
                                       size_t count)
{
    ENTER();
    LOCKED();
    if (!sim_graph_check(graph))
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < count; i++) {
        struct sim_node *node = sim_node_check(to[i]);
        for (size_t k = 0; node && k < node->afters; k++)
            if (node->after[k] == from[i])
                node->after[k] = node->after[--node->afters];
    }
    return CUDA_SUCCESS;
}

API CUresult cuGraphRemoveDependencies_v2(void *graph, struct sim_node *const *from, struct sim_node *const *to,
                                          const void *edges, size_t count)
{
    (void)edges;
    return cuGraphRemoveDependencies(graph, from, to, count);
}

API CUresult cuGraphGetId(void *handle, unsigned *id)
{
    ENTER();
    struct sim_graph *graph = sim_graph_check(handle);
    if (!graph || !id)
        return CUDA_ERROR_INVALID_VALUE;
    *id = (unsigned)graph->id;
    return CUDA_SUCCESS;
}

API CUresult cuGraphNodeGetContainingGraph(void *handle, struct sim_graph **graph)
{
    ENTER();
    struct sim_node *node = sim_node_check(handle);
    if (!node || !graph)
        return CUDA_ERROR_INVALID_VALUE;
    *graph = node->graph;
    return CUDA_SUCCESS;
}

API CUresult cuGraphChildGraphNodeGetGraph(void *handle, struct sim_graph **graph)
{
    ENTER();
    struct sim_node *node = sim_node_check(handle);
    if (!node || node->type != CU_NODE_GRAPH || !graph)
        return CUDA_ERROR_INVALID_VALUE;
    *graph = node->child;
    return CUDA_SUCCESS;
}

API CUresult cuGraphMemFreeNodeGetParams(void *handle, CUdeviceptr *pointer)
{
    ENTER();
    struct sim_node *node = sim_node_check(handle);
    if (!node || node->type != CU_NODE_MEM_FREE || !pointer)
        return CUDA_ERROR_INVALID_VALUE;
    *pointer = node->pointer;
    return CUDA_SUCCESS;
}

API CUresult cuGraphMemAllocNodeGetParams(void *handle, struct cu_alloc_node *params)
{
    ENTER();
    struct sim_node *node = sim_node_check(handle);
    if (!node || node->type != CU_NODE_MEM_ALLOC || !params)
        return CUDA_ERROR_INVALID_VALUE;
    *params = (struct cu_alloc_node){.pool = {.type = 1, .location = {1, 0}}};
    params->bytes = node->bytes;
    params->pointer = node->pointer;
    return CUDA_SUCCESS;
}

/* A copy of a graph; its nodes know which ones they stand for. */
API CUresult cuGraphClone(struct sim_graph **made, void *handle)
{
    ENTER();
    LOCKED();
    struct sim_graph *graph = sim_graph_check(handle);
    if (!graph || !made)
        return CUDA_ERROR_INVALID_VALUE;
    *made = sim_graph_new();
    sim_users_copy(&(*made)->users, graph->users);
    for (struct sim_node *node = graph->first; node; node = node->next) {
        struct sim_node *copy = sim_node_new(*made, node->type, NULL, 0), kept = *copy;
        *copy = *node;
        copy->graph = *made;
        copy->id = kept.id;
        copy->next = NULL;
        copy->after = NULL;
        copy->afters = 0;
        copy->original = node;
    }
    for (struct sim_node *copy = (*made)->first; copy; copy = copy->next)
        for (size_t i = 0; i < copy->original->afters; i++)
            for (struct sim_node *other = (*made)->first; other; other = other->next)
                if (other->original == copy->original->after[i])
                    sim_node_depend(copy, other);
    return CUDA_SUCCESS;
}

API CUresult cuGraphNodeFindInClone(struct sim_node **found, void *original, void *clone)
{
    ENTER();
    LOCKED();
    struct sim_graph *graph = sim_graph_check(clone);
    if (!found || !graph)
        return CUDA_ERROR_INVALID_VALUE;
    for (struct sim_node *node = graph->first; node; node = node->next)
        if (node->original == original) {
            *found = node;
            return CUDA_SUCCESS;
        }
    return CUDA_ERROR_INVALID_VALUE;
}
