/* SPDX-License-Identifier: Apache-2.0 */
/* A driver small enough to be obviously right, for tests of the library alone: calls cost
 * nanoseconds, memory is a counter, kernels take the time that their first parameter says.
 *
 *   FAKE_CUDA_CARDS  number of cards (1)      FAKE_CUDA_GIB  size of each (16)
 *   FAKE_CUDA_FILE   a file of 4096 bytes holding the cards' counters, shared between processes
 *
 * Device memory truth is read back through fake_used(card).
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "../include/cuda_subset.h"

#define API __attribute__((visibility("default")))
#define MIB (1ULL << 20)
#define MAX_CARDS 16
#define CONTEXT (300 * MIB)

struct block { uint64_t bytes; int card; int refs; };
struct event { uint64_t at; };
struct pool { int card, destroyed; uint64_t used, reserved; };

static uint64_t *used; /* [card] bytes, shared between processes */
static uint64_t next = 0x7f0000000000ULL, busy_until[MAX_CARDS], event_ns;
static int cards = 1, primary[MAX_CARDS];
static uint64_t size = 16 * 1024 * MIB;
static __thread int current = -1;
static struct pool defaults[MAX_CARDS];

static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

static int take(int card, uint64_t bytes)
{
    if (__atomic_add_fetch(&used[card], bytes, __ATOMIC_SEQ_CST) <= size)
        return 0;
    __atomic_sub_fetch(&used[card], bytes, __ATOMIC_SEQ_CST);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

static void give(int card, uint64_t bytes) { __atomic_sub_fetch(&used[card], bytes, __ATOMIC_SEQ_CST); }

/* Event calls take FAKE_EVENT_NS of CPU time, 0 by default. */
static void spin(void) { for (uint64_t end = event_ns ? now_ns() + event_ns : 0; end && now_ns() < end;); }

API CUresult cuInit(unsigned flags)
{
    const char *file = getenv("FAKE_CUDA_FILE"), *number = getenv("FAKE_CUDA_CARDS"), *gib = getenv("FAKE_CUDA_GIB");
    int fd = file ? open(file, O_RDWR) : -1;
    (void)flags;
    if (used)
        return 0;
    cards = number ? atoi(number) : 1, event_ns = strtoull(getenv("FAKE_EVENT_NS") ?: "0", NULL, 10);
    size = (gib ? strtoull(gib, NULL, 10) : 16) * 1024 * MIB;
    used = mmap(NULL, 4096, PROT_READ | PROT_WRITE, fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED, fd, 0);
    if (fd >= 0)
        close(fd);
    return 0;
}

API uint64_t fake_used(int card) { return used[card]; }
API CUresult cuDriverGetVersion(int *version) { *version = 13000; return 0; }
API CUresult cuDeviceGetCount(int *number) { *number = cards; return 0; }
API CUresult cuDeviceGet(CUdevice *device, int ordinal) { *device = ordinal; return ordinal < cards ? 0 : 101; }

API CUresult cuDeviceGetUuid(struct cu_uuid *uuid, CUdevice device)
{
    memset(uuid, 0, sizeof *uuid);
    uuid->bytes[15] = (uint8_t)(device + 1);
    return device < cards ? 0 : 101;
}

API CUresult cuDeviceTotalMem_v2(size_t *total, CUdevice device) { (void)device; *total = size; return 0; }

API CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
    if (!primary[device] && take(device, CONTEXT))
        return CUDA_ERROR_OUT_OF_MEMORY;
    primary[device]++;
    *context = (CUcontext)(uintptr_t)(0x1000 + device);
    return 0;
}

API CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device)
{
    if (!primary[device])
        return 201;
    if (--primary[device] == 0)
        give(device, CONTEXT);
    return 0;
}

API CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags, int *active)
{
    *flags = 0;
    *active = primary[device] > 0;
    return 0;
}

API CUresult cuCtxSetCurrent(CUcontext context)
{
    current = (int)((uintptr_t)context & 0xff);
    return 0;
}

API CUresult cuCtxGetCurrent(CUcontext *context)
{
    *context = current < 0 ? NULL : (CUcontext)(uintptr_t)(0x1000 + current);
    return 0;
}

API CUresult cuCtxGetDevice(CUdevice *device)
{
    *device = current;
    return current < 0 ? 201 : 0;
}

API CUresult cuCtxSynchronize(void)
{
    while (now_ns() < busy_until[current])
        usleep(100);
    return 0;
}

API CUresult cuMemGetInfo_v2(size_t *left, size_t *total)
{
    if (current < 0)
        return 201;
    *left = size - used[current];
    *total = size;
    return 0;
}

static struct block *fresh(uint64_t bytes, int card)
{
    struct block *b = malloc(sizeof *b);
    *b = (struct block){.bytes = bytes, .card = card, .refs = 1};
    return b;
}

API CUresult cuMemAlloc_v2(CUdeviceptr *at, size_t bytes)
{
    if (current < 0)
        return 201;
    if (take(current, bytes))
        return CUDA_ERROR_OUT_OF_MEMORY;
    *at = (CUdeviceptr)(uintptr_t)fresh(bytes, current);
    return 0;
}

API CUresult cuMemAllocManaged(CUdeviceptr *at, size_t bytes, unsigned flags)
{
    (void)flags;
    return cuMemAlloc_v2(at, bytes);
}

API CUresult cuMemAllocPitch_v2(CUdeviceptr *at, size_t *pitch, size_t width, size_t height, unsigned element)
{
    (void)element;
    *pitch = (width + 511) & ~511ULL;
    return cuMemAlloc_v2(at, *pitch * height);
}

API CUresult cuMemFree_v2(CUdeviceptr at)
{
    struct block *b = (struct block *)(uintptr_t)at;
    if (!b)
        return CUDA_ERROR_INVALID_VALUE;
    give(b->card, b->bytes);
    free(b);
    return 0;
}

API CUresult cuMemCreate(CUmemHandle *handle, size_t bytes, const struct cu_mem_prop *prop, uint64_t flags)
{
    (void)flags;
    if (take(prop->location.id, bytes))
        return CUDA_ERROR_OUT_OF_MEMORY;
    *handle = (uint64_t)(uintptr_t)fresh(bytes, prop->location.id);
    return 0;
}

static void drop(struct block *b)
{
    if (--b->refs == 0)
        cuMemFree_v2((CUdeviceptr)(uintptr_t)b);
}

static struct { CUdeviceptr at; size_t bytes; struct block *block; } mappings[256];

API CUresult cuMemRelease(CUmemHandle handle) { drop((struct block *)(uintptr_t)handle); return 0; }

API CUresult cuMemAddressReserve(CUdeviceptr *at, size_t bytes, size_t align, CUdeviceptr hint, uint64_t flags)
{
    (void)align, (void)hint, (void)flags;
    *at = __atomic_fetch_add(&next, (bytes + 2 * MIB - 1) / (2 * MIB) * 2 * MIB, __ATOMIC_SEQ_CST);
    return 0;
}

API CUresult cuMemMap(CUdeviceptr at, size_t bytes, size_t offset, CUmemHandle handle, uint64_t flags)
{
    (void)offset, (void)flags;
    for (int i = 0; i < 256; i++)
        if (!mappings[i].bytes) {
            mappings[i].at = at, mappings[i].bytes = bytes, mappings[i].block = (struct block *)(uintptr_t)handle;
            mappings[i].block->refs++;
            return 0;
        }
    return 999;
}

API CUresult cuMemUnmap(CUdeviceptr at, size_t bytes)
{
    for (int i = 0; i < 256; i++)
        if (mappings[i].bytes && mappings[i].at >= at && mappings[i].at < at + bytes) {
            drop(mappings[i].block);
            mappings[i].bytes = 0;
        }
    return 0;
}

API CUresult cuMemRetainAllocationHandle(CUmemHandle *handle, void *address)
{
    for (int i = 0; i < 256; i++)
        if (mappings[i].bytes && (CUdeviceptr)address - mappings[i].at < mappings[i].bytes) {
            mappings[i].block->refs++;
            *handle = (uint64_t)(uintptr_t)mappings[i].block;
            return 0;
        }
    return CUDA_ERROR_INVALID_VALUE;
}

API CUresult cuDeviceGetDefaultMemPool(CUpool *pool, CUdevice device)
{
    defaults[device].card = device;
    *pool = (CUpool)&defaults[device];
    return 0;
}

API CUresult cuMemPoolCreate(CUpool *pool, const struct cu_pool_props *props)
{
    struct pool *p = calloc(1, sizeof *p);
    p->card = props->location.id;
    *pool = (CUpool)p;
    return 0;
}

API CUresult cuMemPoolGetAttribute(CUpool pool, int attribute, void *value)
{
    *(uint64_t *)value = ((struct pool *)pool)->reserved;
    return attribute == CU_POOL_RESERVED_CURRENT ? 0 : CUDA_ERROR_INVALID_VALUE;
}

static CUresult resize(struct pool *p, uint64_t wanted)
{
    uint64_t to = (wanted + 32 * MIB - 1) / (32 * MIB) * 32 * MIB;
    if (to > p->reserved && take(p->card, to - p->reserved))
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (to < p->reserved)
        give(p->card, p->reserved - to);
    p->reserved = to;
    return 0;
}

API CUresult cuMemAllocFromPoolAsync(CUdeviceptr *at, size_t bytes, CUpool pool, CUstream stream)
{
    struct pool *p = (struct pool *)pool;
    (void)stream;
    if (p->used + bytes > p->reserved && resize(p, p->used + bytes))
        return CUDA_ERROR_OUT_OF_MEMORY;
    p->used += bytes;
    uint64_t *b = malloc(16);
    b[0] = bytes, b[1] = (uint64_t)(uintptr_t)p;
    *at = (CUdeviceptr)(uintptr_t)b;
    return 0;
}

API CUresult cuMemAllocAsync(CUdeviceptr *at, size_t bytes, CUstream stream)
{
    CUpool pool;
    cuDeviceGetDefaultMemPool(&pool, current);
    return cuMemAllocFromPoolAsync(at, bytes, pool, stream);
}

static void reap(struct pool *p)
{
    if (!p->destroyed || p->used)
        return;
    give(p->card, p->reserved);
    free(p);
}

API CUresult cuMemPoolDestroy(CUpool pool)
{
    ((struct pool *)pool)->destroyed = 1;
    reap((struct pool *)pool);
    return 0;
}

API CUresult cuMemFreeAsync(CUdeviceptr at, CUstream stream)
{
    uint64_t *b = (uint64_t *)(uintptr_t)at;
    struct pool *p = (struct pool *)(uintptr_t)b[1];
    (void)stream;
    p->used -= b[0];
    free(b);
    reap(p);
    return 0;
}

API CUresult cuMemPoolTrimTo(CUpool pool, size_t keep)
{
    struct pool *p = (struct pool *)pool;
    return p->reserved > keep ? resize(p, p->used > keep ? p->used : keep) : 0;
}

API CUresult cuStreamSynchronize(CUstream stream)
{
    (void)stream;
    for (int card = 0; card < cards; card++)
        cuMemPoolTrimTo((CUpool)&defaults[card], 0);
    return 0;
}

API CUresult cuEventCreate(CUevent *event, unsigned flags)
{
    (void)flags;
    *event = calloc(1, sizeof(struct event));
    return 0;
}
API CUresult cuEventDestroy_v2(CUevent event) { free(event); return 0; }

API CUresult cuEventRecord(CUevent event, CUstream stream)
{
    uint64_t now = now_ns();
    (void)stream, spin();
    ((struct event *)event)->at = busy_until[current] > now ? busy_until[current] : now;
    return 0;
}

API CUresult cuEventQuery(CUevent event) { return spin(), now_ns() >= ((struct event *)event)->at ? 0 : 600; }

API CUresult cuEventElapsedTime(float *ms, CUevent from, CUevent to)
{
    spin();
    *ms = (float)((double)((struct event *)to)->at - (double)((struct event *)from)->at) / 1e6F;
    return 0;
}

/* One queue per card; the first kernel parameter points at the kernel's nanoseconds. */
API CUresult cuLaunchKernel(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                            unsigned shared, CUstream stream, void **parameters, void **extra)
{
    (void)f, (void)gx, (void)gy, (void)gz, (void)bx, (void)by, (void)bz, (void)shared, (void)stream, (void)extra;
    if (!parameters)
        return 0;
    uint64_t now = now_ns(), start = busy_until[current] > now ? busy_until[current] : now;
    busy_until[current] = start + *(uint64_t *)parameters[0];
    return 0;
}

API CUresult cuNobodyKnowsThis(void) { return 0; }
static CUresult newer_alloc(CUdeviceptr *at, size_t bytes, int how) { return how ? 801 : cuMemAlloc_v2(at, bytes); }
/* As the real one: a name, perhaps with a newer version behind it. */
API CUresult cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags, int *status)
{
    static const struct { const char *name; void *function; } known[] = {
#define KNOWN(name, target) {#name, (void *)target},
        KNOWN(cuInit, cuInit) KNOWN(cuMemAlloc, cuMemAlloc_v2) KNOWN(cuMemFree, cuMemFree_v2)
        KNOWN(cuMemGetInfo, cuMemGetInfo_v2) KNOWN(cuDeviceGet, cuDeviceGet) KNOWN(cuMemCreate, cuMemCreate)
        KNOWN(cuLaunchKernel, cuLaunchKernel) KNOWN(cuNobodyKnowsThis, cuNobodyKnowsThis)
        KNOWN(cuGetProcAddress, cuGetProcAddress_v2) KNOWN(cuMemAllocAsync, cuMemAllocAsync) KNOWN(newer_alloc, newer_alloc)
    };
    (void)flags, name = version >= 99000 && !strcmp(name, "cuMemAlloc") ? "newer_alloc" : name; /* in nobody's table */
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (!strcmp(known[i].name, name)) {
            *function = known[i].function;
            if (status)
                *status = 0;
            return 0;
        }
    *function = NULL;
    if (status)
        *status = 1;
    return CUDA_ERROR_NOT_FOUND;
}

API CUresult cuGetProcAddress(const char *name, void **function, int version, uint64_t flags)
{
    return cuGetProcAddress_v2(name, function, version, flags, NULL);
}
