/* Pools and graph memory. A request is charged rounded to the granule, the driver is asked, and
 * then the pool's own figure of reserved bytes replaces the guess. It falls when streams are
 * synchronised, so it is read again then, and before anything is refused.
 */
#include "hook.h"
#include "limiter.h"
#include "pool.h"

#define POOLS 64

struct pool {
    uint64_t number; /* ours, never used twice; 0: this place is free */
    CUpool pool;     /* NULL: the graph memory of `device` */
    CUdevice device;
    int32_t card;
    uint32_t destroyed; /* it lives on until `live` is 0 */
    uint64_t charged;
    uint64_t live; /* bytes handed out */
};

static struct pool pools[POOLS];
static uint32_t count, lock; /* places ever used */
static uint32_t graphs;      /* 1 once a graph may hold memory */
static uint64_t numbers;

/* From the first memory node on, the device's graph memory is one more pool of ours. */
static void mind_graphs(CUdevice device, int card);

static void enter(void)
{
    while (__atomic_exchange_n(&lock, 1, __ATOMIC_ACQUIRE))
        gs_yield();
}

static void leave(void) { __atomic_store_n(&lock, 0, __ATOMIC_RELEASE); }

static uint64_t reserved(const struct pool *p)
{
    uint64_t now = 0;
    if (p->destroyed)
        return p->charged; /* nobody can ask any more: what it last had */
    CUresult rc = p->pool ? GS_REAL(cuMemPoolGetAttribute)(p->pool, CU_POOL_RESERVED_CURRENT, &now)
                          : GS_REAL(cuDeviceGetGraphMemAttribute)(p->device, CU_GRAPH_RESERVED, &now);
    return rc == CUDA_SUCCESS ? now : p->charged;
}

/* The pool's place in our list, made where it is new; NULL where the list is full. Places never
 * move. pre: entered. */
static struct pool *place(CUpool pool, CUdevice device, int card)
{
    struct pool *room = NULL;
    for (uint32_t i = 0; i < count; i++) {
        struct pool *p = &pools[i];
        if (p->number && !p->destroyed && p->pool == pool && (pool || p->device == device))
            return p;
        if (!p->number && !room)
            room = p;
    }
    if (!room && count < POOLS) {
        room = &pools[count];
        __atomic_store_n(&count, count + 1, __ATOMIC_RELEASE);
    }
    if (room)
        *room = (struct pool){.number = ++numbers, .pool = pool, .device = device, .card = card};
    return room;
}

/* Charge what the pool has reserved now, of which `guess` bytes are charged already.
 * 0, or -1 with the old charge kept and the guess given back where that passes the promise. */
static int true_up(struct pool *p, uint64_t guess)
{
    uint64_t now = gs_granules(reserved(p)) * GS_GRANULE, have = p->charged + guess;
    if (now > have && gs_charge_quietly(p->card, now - have) < 0) {
        gs_uncharge(p->card, guess);
        return -1;
    }
    if (now < have)
        gs_uncharge(p->card, have - now);
    p->charged = now;
    return 0;
}

/* Read every pool again; cheap where there is none. */
void gs_pools_look(void)
{
    if (!__atomic_load_n(&count, __ATOMIC_ACQUIRE))
        return;
    enter();
    for (uint32_t i = 0; i < count; i++)
        if (pools[i].number)
            (void)true_up(&pools[i], 0);
    leave();
}

/* Charge what graphs hold now; 1 where that passes the promise. Cheap where there is no such memory. */
int gs_graphs_over(void)
{
    int over = 0;
    if (!__atomic_load_n(&graphs, __ATOMIC_ACQUIRE))
        return 0;
    enter();
    for (uint32_t i = 0; i < count; i++)
        if (pools[i].number && !pools[i].pool)
            over |= true_up(&pools[i], 0) < 0;
    leave();
    return over;
}

/* Make the pools of a card give back what nobody uses; the bytes given. Called from a refusal, also
 * from inside true_up(): then the lock is held and there is nothing to do. */
uint64_t gs_pools_trim(int card)
{
    uint64_t given = 0;
    if (!__atomic_load_n(&count, __ATOMIC_ACQUIRE) || __atomic_exchange_n(&lock, 1, __ATOMIC_ACQUIRE))
        return 0;
    for (uint32_t i = 0; i < count; i++) {
        struct pool *p = &pools[i];
        if (!p->number || p->destroyed || p->card != card)
            continue;
        if (p->pool)
            GS_REAL(cuMemPoolTrimTo)(p->pool, 0);
        else
            GS_REAL(cuDeviceGraphMemTrim)(p->device);
        uint64_t now = gs_granules(reserved(p)) * GS_GRANULE;
        if (now < p->charged) {
            gs_uncharge(card, p->charged - now);
            given += p->charged - now;
            p->charged = now;
        }
    }
    leave();
    return given;
}

static CUpool current_pool(CUdevice device)
{
    CUpool pool = NULL;
    if (!GS_HAS(cuDeviceGetMemPool) || GS_REAL(cuDeviceGetMemPool)(&pool, device) != CUDA_SUCCESS)
        GS_REAL(cuDeviceGetDefaultMemPool)(&pool, device);
    return pool;
}

typedef CUresult (*from_pool)(CUdeviceptr *, size_t, CUpool, CUstream);
typedef CUresult (*from_current)(CUdeviceptr *, size_t, CUstream);

/* Charge, allocate through one of the two calls, true up; past the promise the allocation is freed. */
static CUresult allocate(CUdeviceptr *at, size_t bytes, CUpool pool, CUstream stream, from_pool named,
                         from_current unnamed, const char *api)
{
    CUdevice device;
    int card = GS_CARD_NONE;
    if (gs_managed() && GS_REAL(cuCtxGetDevice)(&device) == CUDA_SUCCESS)
        card = gs_card_of(device);
    if (card == GS_CARD_NONE)
        return named ? named(at, bytes, pool, stream) : unnamed(at, bytes, stream);
    if (gs_capturing(stream)) { /* it becomes a node of a graph */
        mind_graphs(device, card);
        return named ? named(at, bytes, pool, stream) : unnamed(at, bytes, stream);
    }
    enter();
    struct pool *p = place(named ? pool : current_pool(device), device, card);
    leave();
    if (p && p->card == GS_CARD_NONE) /* a pool of host memory */
        return named(at, bytes, pool, stream);
    card = p ? p->card : card;
    uint64_t guess = bytes > UINT64_MAX - GS_CHUNK ? bytes : (bytes + GS_CHUNK - 1) / GS_CHUNK * GS_CHUNK;
    CUresult rc = p ? gs_charge(card, guess, api) : CUDA_ERROR_OUT_OF_MEMORY;
    if (rc != CUDA_SUCCESS)
        return rc;
    rc = named ? named(at, bytes, pool, stream) : unnamed(at, bytes, stream);
    if (rc != CUDA_SUCCESS) {
        gs_uncharge(card, guess);
        return rc;
    }
    enter();
    int over = true_up(p, guess) < 0;
    if (!over)
        p->live += bytes;
    leave();
    if (!over) {
        struct gs_entry entry = {.key = *at, .bytes = bytes, .card = (int16_t)card, .kind = GS_KIND_POOLED,
                                 .extra = p->number};
        (void)gs_table_put(&entry);
        return rc;
    }
    GS_REAL(cuMemFreeAsync)(*at, stream);
    GS_REAL(cuStreamSynchronize)(stream);
    gs_pools_trim(card);
    gs_breach(GS_BREACH_DENIED, card, bytes, api);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

GS_API CUresult cuMemAllocAsync(CUdeviceptr *at, size_t bytes, CUstream stream)
{
    return allocate(at, bytes, NULL, stream, NULL, GS_REAL(cuMemAllocAsync), __func__);
}

GS_API CUresult cuMemAllocAsync_ptsz(CUdeviceptr *at, size_t bytes, CUstream stream)
{
    return allocate(at, bytes, NULL, stream, NULL, GS_REAL(cuMemAllocAsync_ptsz), __func__);
}

GS_API CUresult cuMemAllocFromPoolAsync(CUdeviceptr *at, size_t bytes, CUpool pool, CUstream stream)
{
    return allocate(at, bytes, pool, stream, GS_REAL(cuMemAllocFromPoolAsync), NULL, __func__);
}

GS_API CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *at, size_t bytes, CUpool pool, CUstream stream)
{
    return allocate(at, bytes, pool, stream, GS_REAL(cuMemAllocFromPoolAsync_ptsz), NULL, __func__);
}

static void forget(struct pool *p)
{
    gs_uncharge(p->card, p->charged);
    *p = (struct pool){0};
}

/* Memory of a pool was freed: the last of a destroyed pool takes the pool with it. */
static void gone(const struct gs_entry *entry)
{
    enter();
    for (uint32_t i = 0; i < count; i++) {
        struct pool *p = &pools[i];
        if (p->number != entry->extra)
            continue;
        p->live -= entry->bytes < p->live ? entry->bytes : p->live;
        if (p->destroyed && p->live == 0)
            forget(p);
    }
    leave();
}

/* An address that gs_table does not know as direct was freed by cuMemFree. */
void gs_pools_freed(uint64_t at)
{
    struct gs_entry entry;
    if (__atomic_load_n(&count, __ATOMIC_ACQUIRE) && gs_table_take(at, GS_KIND_POOLED, &entry) == 0) {
        gone(&entry);
        gs_pools_look();
    }
}

/* An address of cuMemAlloc may be freed this way too. */
static CUresult free_async(CUdeviceptr at, CUstream stream, CUresult (*real)(CUdeviceptr, CUstream))
{
    struct gs_entry entry;
    int direct = gs_managed() && gs_table_take(at, GS_KIND_MEMORY, &entry) == 0;
    int pooled = !direct && gs_managed() && gs_table_take(at, GS_KIND_POOLED, &entry) == 0;
    CUresult rc = real(at, stream);
    if (rc != CUDA_SUCCESS && (direct || pooled))
        (void)gs_table_put(&entry);
    else if (direct)
        gs_freed(&entry);
    else if (pooled)
        gone(&entry);
    return rc;
}

GS_API CUresult cuMemFreeAsync(CUdeviceptr at, CUstream stream)
{
    return free_async(at, stream, GS_REAL(cuMemFreeAsync));
}

GS_API CUresult cuMemFreeAsync_ptsz(CUdeviceptr at, CUstream stream)
{
    return free_async(at, stream, GS_REAL(cuMemFreeAsync_ptsz));
}

GS_API CUresult cuMemPoolCreate(CUpool *pool, const struct cu_pool_props *props)
{
    CUresult rc = GS_REAL(cuMemPoolCreate)(pool, props);
    if (rc != CUDA_SUCCESS || !gs_managed() || !props)
        return rc;
    int on_card = props->location.type == CU_LOCATION_DEVICE;
    enter();
    (void)place(*pool, props->location.id, on_card ? gs_card_of(props->location.id) : GS_CARD_NONE);
    leave();
    return rc;
}

/* A destroyed pool keeps what is still allocated from it, and stays charged for as long. */
GS_API CUresult cuMemPoolDestroy(CUpool pool)
{
    CUresult rc = GS_REAL(cuMemPoolDestroy)(pool);
    if (rc != CUDA_SUCCESS || !gs_managed())
        return rc;
    enter();
    for (uint32_t i = 0; i < count; i++) {
        struct pool *p = &pools[i];
        if (!p->number || p->destroyed || p->pool != pool)
            continue;
        p->destroyed = 1;
        if (p->live == 0)
            forget(p);
    }
    leave();
    return rc;
}

#define THEN_LOOK(name, parameters, arguments)                                                                         \
    GS_API CUresult name parameters                                                                                    \
    {                                                                                                                  \
        CUresult rc = GS_REAL(name) arguments;                                                                         \
        gs_pools_look();                                                                                               \
        return rc;                                                                                                     \
    }

THEN_LOOK(cuMemPoolTrimTo, (CUpool pool, size_t keep), (pool, keep))
THEN_LOOK(cuStreamSynchronize, (CUstream stream), (stream))
THEN_LOOK(cuStreamSynchronize_ptsz, (CUstream stream), (stream))
THEN_LOOK(cuEventSynchronize, (CUevent event), (event))
THEN_LOOK(cuCtxSynchronize, (void), ())
THEN_LOOK(cuCtxSynchronize_v2, (CUcontext context), (context))
THEN_LOOK(cuDeviceGraphMemTrim, (CUdevice device), (device))

static void mind_graphs(CUdevice device, int card)
{
    enter();
    (void)place(NULL, device, card);
    __atomic_store_n(&graphs, 1, __ATOMIC_RELEASE);
    leave();
}

GS_API CUresult cuGraphAddMemAllocNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t number,
                                       struct cu_alloc_node *wanted)
{
    CUresult rc = GS_REAL(cuGraphAddMemAllocNode)(node, graph, after, number, wanted);
    if (rc == CUDA_SUCCESS && gs_managed() && wanted && wanted->pool.location.type == CU_LOCATION_DEVICE)
        mind_graphs(wanted->pool.location.id, gs_card_of(wanted->pool.location.id));
    return rc;
}

/* A forked child has no pools of its own yet. */
void gs_pools_forget(void)
{
    lock = count = graphs = 0;
}
