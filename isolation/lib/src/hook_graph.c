/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that a graph's own nodes allocate: taken from the device's graph memory when the graph is
 * launched or uploaded. What that may need is read from the nodes when the graph is made executable,
 * however they came into it, and charged before the launch.
 */
#include <sys/mman.h>

#include "hook.h"
#include "module.h"
#include "pool.h"

#define LIVE 1024 /* allocations followed one by one; later ones count as never freed */
#define DEPTH 8   /* graphs in graphs */

struct walk {
    uint64_t now, peak;
    uint32_t live;
    struct {
        CUdeviceptr at;
        uint64_t bytes;
    } held[LIVE];
    int device;
};

static void took(struct walk *w, const struct cu_alloc_node *it)
{
    if (it->pool.location.type != CU_LOCATION_DEVICE)
        return;
    w->device = it->pool.location.id;
    w->now += it->bytes;
    w->peak = w->now > w->peak ? w->now : w->peak;
    if (w->live < LIVE) {
        w->held[w->live].at = it->at;
        w->held[w->live++].bytes = it->bytes;
    }
}

static void gave(struct walk *w, CUdeviceptr at)
{
    for (uint32_t i = w->live; i-- > 0;)
        if (w->held[i].at == at) {
            w->now -= w->held[i].bytes;
            w->held[i] = w->held[--w->live];
            return;
        }
}

/* Follow a graph's memory nodes in the order of the driver's list, which is that of their making:
 * branches that run side by side may need more for a moment, and are then looked at after the launch. */
static void follow(struct walk *w, CUgraph graph, int depth)
{
    size_t count = 0;
    if (depth > DEPTH || GS_REAL(cuGraphGetNodes)(graph, NULL, &count) != CUDA_SUCCESS || !count)
        return;
    size_t room = count * sizeof(CUgraphNode);
    CUgraphNode *nodes = gs_map(room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1);
    if (!nodes)
        return;
    if (GS_REAL(cuGraphGetNodes)(graph, nodes, &count) != CUDA_SUCCESS)
        count = 0;
    for (size_t i = 0; i < count; i++) {
        struct cu_alloc_node alloc;
        CUdeviceptr at;
        CUgraph child;
        int type = -1;
        (void)GS_REAL(cuGraphNodeGetType)(nodes[i], &type);
        if (type == CU_NODE_ALLOC && GS_REAL(cuGraphMemAllocNodeGetParams)(nodes[i], &alloc) == CUDA_SUCCESS)
            took(w, &alloc);
        else if (type == CU_NODE_FREE && GS_REAL(cuGraphMemFreeNodeGetParams)(nodes[i], &at) == CUDA_SUCCESS)
            gave(w, at);
        else if (type == CU_NODE_CHILD && GS_REAL(cuGraphChildGraphNodeGetGraph)(nodes[i], &child) == CUDA_SUCCESS)
            follow(w, child, depth + 1);
    }
    gs_unmap(nodes, room);
}

/* The graph became executable: remember what a launch of it may need. */
static CUresult made(CUresult rc, CUgraphExec *exec, CUgraph graph)
{
    if (rc != CUDA_SUCCESS || !gs_managed() || !GS_HAS(cuGraphMemAllocNodeGetParams))
        return rc;
    struct walk *w = gs_map(sizeof *w, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1);
    if (!w)
        return rc;
    follow(w, graph, 0);
    int card = w->peak ? gs_card_of(w->device) : GS_CARD_NONE;
    if (card != GS_CARD_NONE && gs_pool_of(NULL, w->device, card)) {
        struct gs_entry entry = {.key = (uint64_t)*exec, .bytes = w->peak, .card = (int16_t)card,
                                 .kind = GS_KIND_EXEC, .extra = (uint64_t)w->device};
        (void)gs_table_put(&entry);
        gs_pools_refresh(); /* it may have been uploaded in the same call */
    }
    gs_unmap(w, sizeof *w);
    return rc;
}

#define INSTANTIATE(name, parameters, ...)                                                                             \
    GS_API CUresult name parameters { return made(GS_REAL(name)(__VA_ARGS__), exec, graph); }

INSTANTIATE(cuGraphInstantiate, (CUgraphExec * exec, CUgraph graph, CUgraphNode *error, char *log, size_t room), exec,
            graph, error, log, room)
INSTANTIATE(cuGraphInstantiate_v2, (CUgraphExec * exec, CUgraph graph, CUgraphNode *error, char *log, size_t room),
            exec, graph, error, log, room)
INSTANTIATE(cuGraphInstantiateWithFlags, (CUgraphExec * exec, CUgraph graph, uint64_t flags), exec, graph, flags)
INSTANTIATE(cuGraphInstantiateWithParams, (CUgraphExec * exec, CUgraph graph, void *how), exec, graph, how)
INSTANTIATE(cuGraphInstantiateWithParams_ptsz, (CUgraphExec * exec, CUgraph graph, void *how), exec, graph, how)

/* Uploading takes a graph's memory before its first launch does. */
static CUresult upload(CUgraphExec exec, CUstream stream, CUresult (*real)(CUgraphExec, CUstream), const char *api)
{
    uint64_t bytes;
    struct gs_pool_call guess;
    struct gs_pool *pool = gs_graph_pool(exec, &bytes);
    if (!pool)
        return real(exec, stream);
    CUresult rc = gs_pool_begin(pool, bytes, &guess, api);
    if (rc != CUDA_SUCCESS)
        return rc;
    rc = real(exec, stream);
    if (rc == CUDA_SUCCESS)
        (void)gs_pool_fits(&guess, 0);
    gs_pool_end(&guess);
    return rc;
}

GS_API CUresult cuGraphUpload(CUgraphExec exec, CUstream stream)
{
    return upload(exec, stream, GS_REAL(cuGraphUpload), __func__);
}

GS_API CUresult cuGraphUpload_ptsz(CUgraphExec exec, CUstream stream)
{
    return upload(exec, stream, GS_REAL(cuGraphUpload_ptsz), __func__);
}

GS_API CUresult cuGraphExecDestroy(CUgraphExec exec)
{
    struct gs_entry entry;
    int known = gs_managed() && gs_table_take((uint64_t)exec, GS_KIND_EXEC, &entry) == 0;
    CUresult rc = GS_REAL(cuGraphExecDestroy)(exec);
    if (known && rc != CUDA_SUCCESS)
        (void)gs_table_put(&entry);
    return rc;
}

GS_API CUresult cuGraphAddMemAllocNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t number,
                                       struct cu_alloc_node *wanted)
{
    CUresult rc = GS_REAL(cuGraphAddMemAllocNode)(node, graph, after, number, wanted);
    if (rc == CUDA_SUCCESS && gs_managed() && wanted && wanted->pool.location.type == CU_LOCATION_DEVICE)
        (void)gs_pool_of(NULL, wanted->pool.location.id, gs_card_of(wanted->pool.location.id));
    return rc;
}

/* A kernel of a library is loaded when it becomes a node: by its `function` or, in the second form, its `kernel`. */
static CUresult kernel_ready(const struct cu_kernel_node *node, int form, const char *api)
{
    CUresult rc = node && gs_managed() ? gs_kernel_ready(node->function, api) : CUDA_SUCCESS;
    return rc || !node || form < 2 || !gs_managed() ? rc : gs_kernel_ready(node->kernel, api);
}

static CUresult node_ready(const struct cu_node_params *node, const char *api)
{
    return node && node->type == CU_NODE_KERNEL ? kernel_ready(&node->kernel, 2, api) : CUDA_SUCCESS;
}

#define NODE(name, parameters, ready, ...)                                                                             \
    GS_API CUresult name parameters                                                                                    \
    {                                                                                                                  \
        CUresult rc = ready;                                                                                           \
        return rc ? rc : GS_REAL(name)(__VA_ARGS__);                                                                   \
    }
#define ADD CUgraphNode *made, CUgraph graph, const CUgraphNode *after
#define FORM(form) kernel_ready(node, form, __func__)
#define ANY node_ready(node, __func__)

NODE(cuGraphAddKernelNode, (ADD, size_t number, const struct cu_kernel_node *node), FORM(1), made, graph, after, number,
     node)
NODE(cuGraphAddKernelNode_v2, (ADD, size_t number, const struct cu_kernel_node *node), FORM(2), made, graph, after,
     number, node)
NODE(cuGraphKernelNodeSetParams, (CUgraphNode it, const struct cu_kernel_node *node), FORM(1), it, node)
NODE(cuGraphKernelNodeSetParams_v2, (CUgraphNode it, const struct cu_kernel_node *node), FORM(2), it, node)
NODE(cuGraphExecKernelNodeSetParams, (CUgraphExec exec, CUgraphNode it, const struct cu_kernel_node *node), FORM(1),
     exec, it, node)
NODE(cuGraphExecKernelNodeSetParams_v2, (CUgraphExec exec, CUgraphNode it, const struct cu_kernel_node *node), FORM(2),
     exec, it, node)
NODE(cuGraphAddNode, (ADD, size_t number, struct cu_node_params *node), ANY, made, graph, after, number, node)
NODE(cuGraphAddNode_v2, (ADD, const void *edges, size_t number, struct cu_node_params *node), ANY, made, graph, after,
     edges, number, node)
NODE(cuGraphAddNode_v3, (ADD, const void *edges, size_t number, struct cu_node_params *node), ANY, made, graph, after,
     edges, number, node)
NODE(cuGraphNodeSetParams, (CUgraphNode it, struct cu_node_params *node), ANY, it, node)
NODE(cuGraphExecNodeSetParams, (CUgraphExec exec, CUgraphNode it, struct cu_node_params *node), ANY, exec, it, node)
