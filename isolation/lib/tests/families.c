/* SPDX-License-Identifier: Apache-2.0 */
#include "families.h"

#include <string.h>

extern CUresult cuMemAddressReserve(CUdeviceptr *, size_t, size_t, CUdeviceptr, uint64_t);
extern CUresult cuMemAddressFree(CUdeviceptr, size_t);
extern CUresult cuMemPrefetchAsync(CUdeviceptr, size_t, CUdevice, CUstream), cuLibraryGetModule(CUmodule *, CUlibrary);
extern CUresult cuGraphCreate(CUgraph *, unsigned), cuGraphDestroy(CUgraph);
extern CUresult cuGraphAddMemFreeNode(CUgraphNode *, CUgraph, const CUgraphNode *, size_t, CUdeviceptr);

#define HEAP_DEFAULT (8 * MIB)

static const char IMAGE[] = "simgpu 1\nkernel k params=8 ns=$0\ncode 1048576\n";
static const struct cu_location CARD = {.type = CU_LOCATION_DEVICE};

static const char *const NAMES[] = {"nothing",
#define X(name) #name,
                                    FAMILIES(X)
#undef X
};

const char *family_name(enum family family) { return NAMES[family]; }

/* The family of that name; NOTHING where there is none. */
enum family family_named(const char *name)
{
    for (int i = 1; i < FAMILY_COUNT; i++)
        if (!strcmp(NAMES[i], name))
            return (enum family)i;
    return NOTHING;
}

static size_t whole(size_t bytes) { return (bytes + 2 * MIB - 1) / (2 * MIB) * 2 * MIB; }

/* Physical memory whose handle is released while it is mapped: the pattern of expandable segments. */
static CUresult map(struct held *h)
{
    struct cu_mem_prop prop = {.type = 1, .location = CARD};
    h->bytes = whole(h->bytes);
    CUresult rc = cuMemCreate(&h->handle, h->bytes, &prop, 0);
    if (rc)
        return rc;
    if ((rc = cuMemAddressReserve(&h->at, h->bytes, 0, 0, 0)) == 0)
        rc = cuMemMap(h->at, h->bytes, 0, h->handle, 0);
    CUresult last = cuMemRelease(h->handle);
    return rc ? rc : last;
}

static CUresult unmap(struct held *h)
{
    CUresult rc = cuMemUnmap(h->at, h->bytes);
    return rc ? rc : cuMemAddressFree(h->at, h->bytes);
}

/* Managed memory, brought to the card as a kernel that touches it would. */
static CUresult managed(struct held *h, CUstream stream)
{
    CUresult rc = cuMemAllocManaged(&h->at, h->bytes, 1);
    return rc ? rc : cuMemPrefetchAsync(h->at, h->bytes, 0, stream);
}

/* A library, and its module, which is what loads it. */
static CUresult library(struct held *h)
{
    CUmodule module;
    CUresult rc = cuLibraryLoadData((CUlibrary *)&h->object, IMAGE, NULL, NULL, 0, NULL, NULL, 0);
    return rc ? rc : cuLibraryGetModule(&module, h->object);
}

/* Memory that another process could open. */
static CUresult export(struct held *h)
{
    struct cu_ipc_handle handle;
    CUresult rc = cuMemAlloc_v2(&h->at, h->bytes);
    return rc ? rc : cuIpcGetMemHandle(&handle, h->at);
}

/* A pool of the program's own, with one allocation from it. */
static CUresult own_pool(struct held *h, CUstream stream)
{
    struct cu_pool_props props = {.type = 1, .location = CARD};
    CUpool pool;
    CUresult rc = cuMemPoolCreate(&pool, &props);
    if (rc)
        return rc;
    h->object = pool;
    if ((rc = cuMemAllocFromPoolAsync(&h->at, h->bytes, pool, stream)) != 0)
        (void)cuMemPoolDestroy(pool);
    return rc;
}

static CUresult end_pool(struct held *h, CUstream stream)
{
    CUresult rc = cuMemFreeAsync(h->at, stream), last = cuMemPoolDestroy(h->object);
    return rc ? rc : last;
}

/* A context beside the primary one, with an allocation that dies with it. */
static CUresult context(struct held *h)
{
    CUcontext made, popped;
    CUdeviceptr at;
    CUresult rc = cuCtxCreate_v2(&made, 0, 0);
    if (rc)
        return rc;
    h->object = made;
    rc = cuMemAlloc_v2(&at, 3 * MIB);
    (void)cuCtxPopCurrent_v2(&popped);
    if (rc)
        (void)cuCtxDestroy_v2(made);
    return rc;
}

/* A graph that allocates and frees, launched once. */
static CUresult graph(struct held *h, CUstream stream)
{
    struct cu_alloc_node node = {.pool = {.type = 1, .location = CARD}, .bytes = h->bytes};
    CUgraphNode first, last;
    CUgraphExec exec = NULL;
    CUgraph made;
    CUresult rc = cuGraphCreate(&made, 0);
    if (rc)
        return rc;
    if ((rc = cuGraphAddMemAllocNode(&first, made, NULL, 0, &node)) == 0 &&
        (rc = cuGraphAddMemFreeNode(&last, made, &first, 1, node.at)) == 0 &&
        (rc = cuGraphInstantiateWithFlags(&exec, made, 0)) == 0)
        rc = cuGraphLaunch(exec, stream);
    h->object = exec;
    h->other = made;
    if (rc) {
        if (exec)
            (void)cuGraphExecDestroy(exec);
        (void)cuGraphDestroy(made);
    }
    return rc;
}

static CUresult end_graph(struct held *h, CUstream stream)
{
    CUresult rc = cuStreamSynchronize(stream), next = cuGraphExecDestroy(h->object);
    rc = rc ? rc : next;
    next = cuGraphDestroy(h->other);
    rc = rc ? rc : next;
    next = cuDeviceGraphMemTrim(0);
    return rc ? rc : next;
}

/* Take what is wished for: the driver's (or the library's) answer, and nothing held where it is an error. */
CUresult family_take(struct held *h, const struct wish *wish)
{
    size_t pitch;
    struct cu_array3d shape = {.width = 1024, .height = wish->bytes / 4096 + 1, .format = 0x20, .channels = 1};
    *h = (struct held){.family = wish->family, .bytes = wish->bytes};
    switch (wish->family) {
    case FAMILY_small: return cuMemAlloc_v2(&h->at, 1 + wish->bytes % MIB);
    case FAMILY_direct: return cuMemAlloc_v2(&h->at, h->bytes);
    case FAMILY_pitch: return cuMemAllocPitch_v2(&h->at, &pitch, 1000, h->bytes / 1024 + 1, 4);
    case FAMILY_managed: return managed(h, wish->stream);
    case FAMILY_array: return cuArray3DCreate_v2((CUarray *)&h->object, &shape);
    case FAMILY_mipmap: return cuMipmappedArrayCreate((CUmipmap *)&h->object, &shape, 3);
    case FAMILY_mapped: return map(h);
    case FAMILY_exported: return export(h);
    case FAMILY_imported: return cuIpcOpenMemHandle_v2(&h->at, wish->peer, 1);
    case FAMILY_module: return cuModuleLoadData((CUmodule *)&h->object, IMAGE);
    case FAMILY_library: return library(h);
    case FAMILY_heap: return cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP, HEAP_DEFAULT + wish->bytes);
    case FAMILY_context: return context(h);
    case FAMILY_pool: return cuMemAllocAsync(&h->at, h->bytes, wish->stream);
    case FAMILY_ownpool: return own_pool(h, wish->stream);
    case FAMILY_graph: return graph(h, wish->stream);
    default: return CUDA_ERROR_INVALID_VALUE;
    }
}

/* Give back what was taken. */
CUresult family_give(struct held *h, CUstream stream)
{
    enum family family = h->family;
    h->family = NOTHING;
    switch (family) {
    case FAMILY_array: return cuArrayDestroy(h->object);
    case FAMILY_mipmap: return cuMipmappedArrayDestroy(h->object);
    case FAMILY_mapped: return unmap(h);
    case FAMILY_imported: return cuIpcCloseMemHandle(h->at);
    case FAMILY_module: return cuModuleUnload(h->object);
    case FAMILY_library: return cuLibraryUnload(h->object);
    case FAMILY_heap: return cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP, HEAP_DEFAULT);
    case FAMILY_context: return cuCtxDestroy_v2(h->object);
    case FAMILY_pool: return cuMemFreeAsync(h->at, stream);
    case FAMILY_ownpool: return end_pool(h, stream);
    case FAMILY_graph: return end_graph(h, stream);
    default: return cuMemFree_v2(h->at);
    }
}
