/* SPDX-License-Identifier: Apache-2.0 */
/* What a program does with the driver, in several threads, for the sanitizers: every kind of memory, modules, streams,
 * events, launches, captured graphs, pools, arrays, virtual memory, heaps, contexts, bad arguments.
 *
 *   exercise SECONDS THREADS   prints how many rounds ended as they should; exit status 0 where all did
 */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef uint64_t address;
typedef void *handle;
extern int cuInit(unsigned), cuDeviceGet(int *, int), cuDevicePrimaryCtxRetain(handle *, int);
extern int cuCtxSetCurrent(handle), cuCtxSynchronize(void), cuCtxSetLimit(int, size_t), cuCtxCreate_v2(handle *, unsigned, int);
extern int cuCtxDestroy_v2(handle), cuModuleLoadData(handle *, const void *), cuModuleUnload(handle);
extern int cuModuleGetFunction(handle *, handle, const char *), cuModuleGetGlobal_v2(address *, size_t *, handle, const char *);
extern int cuStreamCreate(handle *, unsigned), cuStreamDestroy_v2(handle), cuStreamSynchronize(handle);
extern int cuStreamBeginCapture_v2(handle, int), cuStreamEndCapture(handle, handle *), cuStreamWaitEvent(handle, handle, unsigned);
extern int cuEventCreate(handle *, unsigned), cuEventDestroy_v2(handle), cuEventRecord(handle, handle);
extern int cuEventSynchronize(handle), cuEventElapsedTime(float *, handle, handle), cuEventQuery(handle);
extern int cuLaunchKernel(handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, handle, void **, void **);
extern int cuGraphInstantiateWithFlags(handle *, handle, uint64_t), cuGraphLaunch(handle, handle);
extern int cuGraphExecDestroy(handle), cuGraphDestroy(handle), cuMemAlloc_v2(address *, size_t), cuMemFree_v2(address);
extern int cuMemAllocAsync(address *, size_t, handle), cuMemFreeAsync(address, handle), cuMemGetInfo_v2(size_t *, size_t *);
extern int cuMemsetD8Async(address, unsigned char, size_t, handle), cuMemcpyHtoDAsync_v2(address, const void *, size_t, handle);
extern int cuMemcpyDtoH_v2(void *, address, size_t), cuGetProcAddress_v2(const char *, handle *, int, uint64_t, int *);

extern int cuMemAllocPitch_v2(address *, size_t *, size_t, size_t, unsigned), cuMemAllocManaged(address *, size_t, unsigned);
extern int cuArrayCreate_v2(handle *, const void *), cuArrayDestroy(handle);
extern int cuMemAddressReserve(address *, size_t, size_t, address, uint64_t), cuMemAddressFree(address, size_t);
extern int cuMemCreate(address *, size_t, const void *, uint64_t), cuMemRelease(address), cuMemUnmap(address, size_t);
extern int cuMemMap(address, size_t, size_t, address, uint64_t), cuMemSetAccess(address, size_t, const void *, size_t);

static handle context;
static double until;
static long rounds, wrong;

#define IS(expected, call)                                                                                             \
    do {                                                                                                               \
        int rc = (call);                                                                                               \
        if (rc != (expected)) {                                                                                        \
            fprintf(stderr, "line %d: %d\n", __LINE__, rc);                                                            \
            __atomic_fetch_add(&wrong, 1, __ATOMIC_RELAXED);                                                           \
            return;                                                                                                    \
        }                                                                                                              \
    } while (0)

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int run(handle function, uint64_t ns, handle stream)
{
    void *parameters[1] = {&ns};
    return cuLaunchKernel(function, 4, 1, 1, 128, 1, 1, 0, stream, parameters, NULL);
}

/* Every family of memory, taken, written where it can be, and given back. */
static void memory(unsigned seed)
{
    struct { uint64_t width, height; int format; unsigned channels; } shape = {1 + seed % 4000, 1 + seed % 900, 0x20, 1};
    struct { int type, handles, where, id; uint64_t rest[2]; } prop = {1, 0, 1, 0, {0, 0}};
    struct { int where, id, flags; } access = {1, 0, 3};
    size_t bytes = (size_t)(1 + seed % 4) << 21, pitch;
    address at, mapped, pitched, managed;
    handle array;
    IS(0, cuMemAllocPitch_v2(&pitched, &pitch, 1 + seed % 5000, 1 + seed % 700, 4));
    IS(0, cuMemAllocManaged(&managed, 1 + seed % (4 << 20), 1));
    IS(0, cuArrayCreate_v2(&array, &shape));
    IS(0, cuMemAddressReserve(&mapped, bytes, 0, 0, 0));
    IS(0, cuMemCreate(&at, bytes, &prop, 0));
    IS(0, cuMemMap(mapped, bytes, 0, at, 0));
    IS(0, cuMemSetAccess(mapped, bytes, &access, 1));
    IS(0, cuMemRelease(at));
    IS(0, cuMemsetD8Async(mapped, 7, bytes, NULL));
    IS(0, cuMemUnmap(mapped, bytes));
    IS(0, cuMemAddressFree(mapped, bytes));
    IS(0, cuArrayDestroy(array));
    IS(0, cuMemFree_v2(managed));
    IS(0, cuMemFree_v2(pitched));
}

/* Work on a stream beside its memory, timed by events, then the same as a graph. */
static void work(handle stream, handle function, unsigned seed)
{
    handle begin, end, graph, runnable, unknown = (handle)0x1234;
    unsigned char sent[256], got[256];
    address at, from_pool;
    float ms;
    memset(sent, (int)seed, sizeof sent);
    IS(0, cuEventCreate(&begin, 0));
    IS(0, cuEventCreate(&end, 0));
    IS(0, cuMemAlloc_v2(&at, 1 + seed % (5 << 20)));
    IS(0, cuMemAllocAsync(&from_pool, 1 + seed % (3 << 20), stream));
    IS(0, cuEventRecord(begin, stream));
    IS(0, cuMemcpyHtoDAsync_v2(at, sent, 1 + seed % sizeof sent, stream));
    IS(0, run(function, seed % 20000, stream));
    IS(0, cuEventRecord(end, stream));
    IS(0, cuEventSynchronize(end));
    IS(0, cuEventElapsedTime(&ms, begin, end));
    IS(0, cuMemcpyDtoH_v2(got, at, 1 + seed % sizeof sent));
    IS(0, memcmp(sent, got, 1 + seed % sizeof sent) != 0);
    IS(0, cuStreamBeginCapture_v2(stream, 2));
    for (unsigned i = 0; i < 1 + seed % 5; i++)
        IS(0, run(function, 1000, stream));
    IS(0, cuStreamEndCapture(stream, &graph));
    IS(0, cuGraphInstantiateWithFlags(&runnable, graph, 0));
    IS(0, cuGraphLaunch(runnable, stream));
    IS(0, cuStreamSynchronize(stream));
    IS(0, cuGraphExecDestroy(runnable));
    IS(0, cuGraphDestroy(graph));
    IS(0, cuMemFreeAsync(from_pool, stream));
    IS(0, cuMemFree_v2(at));
    IS(1, cuMemFree_v2(at + 12345));
    IS(500, cuGetProcAddress_v2("cuNobody", &unknown, 12000, 0, NULL));
    IS(0, cuEventDestroy_v2(begin));
    IS(0, cuEventDestroy_v2(end));
    __atomic_fetch_add(&rounds, 1, __ATOMIC_RELAXED);
}

static void turn(unsigned seed)
{
    char image[256];
    handle module, function, stream, other;
    address global;
    size_t bytes;
    snprintf(image, sizeof image, "simgpu 1\nkernel k params=8 ns=$0 width=%u\nglobal table %u\ncode %u\n",
             100 + seed % 900, 4096 + seed % 100000, seed % 200000);
    IS(0, cuModuleLoadData(&module, image));
    IS(0, cuModuleGetFunction(&function, module, "k"));
    IS(500, cuModuleGetFunction(&other, module, "nobody"));
    IS(0, cuModuleGetGlobal_v2(&global, &bytes, module, "table"));
    IS(0, cuStreamCreate(&stream, seed % 2));
    for (unsigned i = 0; i < 8; i++)
        work(stream, function, seed * 7919 + i), memory(seed * 31 + i);
    IS(0, cuStreamDestroy_v2(stream));
    IS(0, cuModuleUnload(module));
    if (seed % 16 == 0) {
        IS(0, cuCtxCreate_v2(&other, 0, 0));
        IS(0, cuCtxSetLimit(2, (1 + seed % 64) << 20));
        IS(0, cuCtxDestroy_v2(other));
        IS(0, cuCtxSetCurrent(context));
    }
}

static void *thread(void *argument)
{
    unsigned seed = (unsigned)(uintptr_t)argument;
    cuCtxSetCurrent(context);
    while (now() < until && !__atomic_load_n(&wrong, __ATOMIC_RELAXED))
        turn((unsigned)rand_r(&seed));
    return NULL;
}

int main(int argc, char **argv)
{
    pthread_t threads[16];
    int device, count = argc > 2 ? atoi(argv[2]) : 2;
    if (count > 16 || cuInit(0) || cuDeviceGet(&device, 0) || cuDevicePrimaryCtxRetain(&context, device))
        return 2;
    until = now() + (argc > 1 ? atof(argv[1]) : 1);
    for (int i = 0; i < count; i++)
        pthread_create(&threads[i], NULL, thread, (void *)(uintptr_t)(i + 1));
    for (int i = 0; i < count; i++)
        pthread_join(threads[i], NULL);
    cuCtxSetCurrent(context);
    cuCtxSynchronize();
    printf("%ld\n", rounds);
    return wrong != 0;
}
