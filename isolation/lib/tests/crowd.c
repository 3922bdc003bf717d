/* Allocates and frees at random through every family, in many threads, until told to stop.
 *
 *   families SECONDS THREADS SEED   prints `calls refused other`, everything freed at the end
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "../include/cuda_subset.h"

#define HELD 12
#define MIB (1ULL << 20)

extern CUresult cuDeviceGet(CUdevice *, int), cuCtxSetCurrent(CUcontext), cuStreamCreate(CUstream *, unsigned);
extern CUresult cuMemAddressReserve(CUdeviceptr *, size_t, size_t, CUdeviceptr, uint64_t);
extern CUresult cuMemAddressFree(CUdeviceptr, size_t);

enum family { NOTHING, DIRECT, PITCH, MANAGED, POOLED, MAPPED, ARRAY, FAMILIES };

struct held {
    enum family family;
    CUdeviceptr at;
    CUarray array;
    size_t bytes;
};

static CUcontext context;
static double until;
static long calls, refused, other;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* Physical memory whose handle is released while it is mapped: the pattern of expandable segments. */
static CUresult map(struct held *h)
{
    struct cu_mem_prop prop = {.type = 1, .location = {.type = CU_LOCATION_DEVICE}};
    CUmemHandle handle;
    h->bytes = (h->bytes + 2 * MIB - 1) / (2 * MIB) * 2 * MIB;
    CUresult rc = cuMemCreate(&handle, h->bytes, &prop, 0);
    if (rc)
        return rc;
    if ((rc = cuMemAddressReserve(&h->at, h->bytes, 0, 0, 0)) == 0)
        rc = cuMemMap(h->at, h->bytes, 0, handle, 0);
    cuMemRelease(handle);
    return rc;
}

static CUresult take(struct held *h, CUstream stream)
{
    size_t pitch;
    struct cu_array3d shape = {.width = 1024, .height = h->bytes / 4096 + 1, .format = 0x20, .channels = 1};
    switch (h->family) {
    case DIRECT: return cuMemAlloc_v2(&h->at, h->bytes);
    case PITCH: return cuMemAllocPitch_v2(&h->at, &pitch, 1000, h->bytes / 1024 + 1, 4);
    case MANAGED: return cuMemAllocManaged(&h->at, h->bytes, 1);
    case POOLED: return cuMemAllocAsync(&h->at, h->bytes, stream);
    case MAPPED: return map(h);
    case ARRAY: return cuArray3DCreate_v2(&h->array, &shape);
    default: return CUDA_ERROR_INVALID_VALUE;
    }
}

static CUresult give(struct held *h, CUstream stream)
{
    switch (h->family) {
    case POOLED: return cuMemFreeAsync(h->at, stream);
    case MAPPED: return cuMemUnmap(h->at, h->bytes) || cuMemAddressFree(h->at, h->bytes);
    case ARRAY: return cuArrayDestroy(h->array);
    default: return cuMemFree_v2(h->at);
    }
}

static void *work(void *argument)
{
    unsigned seed = (unsigned)(uintptr_t)argument;
    struct held held[HELD] = {0};
    CUstream stream;
    if (cuCtxSetCurrent(context) || cuStreamCreate(&stream, 1))
        return NULL;
    for (int last = 0; !last;) {
        last = now() > until;
        for (int i = last ? 0 : rand_r(&seed) % HELD, end = last ? HELD : i + 1; i < end; i++) {
            struct held *h = &held[i];
            __atomic_fetch_add(&calls, 1, __ATOMIC_RELAXED);
            if (h->family) {
                if (give(h, stream))
                    __atomic_fetch_add(&other, 1, __ATOMIC_RELAXED);
                h->family = NOTHING;
            } else if (!last) {
                h->family = (enum family)(1 + rand_r(&seed) % (FAMILIES - 1));
                h->bytes = 1 + (size_t)rand_r(&seed) % (40 * MIB);
                CUresult rc = take(h, stream);
                if (rc)
                    h->family = NOTHING;
                if (rc)
                    __atomic_fetch_add(rc == CUDA_ERROR_OUT_OF_MEMORY ? &refused : &other, 1, __ATOMIC_RELAXED);
            }
        }
    }
    cuStreamSynchronize(stream);
    return NULL;
}

int main(int argc, char **argv)
{
    CUdevice device;
    pthread_t thread[64];
    int threads = argc > 2 ? atoi(argv[2]) : 4;
    unsigned seed = argc > 3 ? (unsigned)atoi(argv[3]) : 1;
    if (threads > 64 || cuInit(0) || cuDeviceGet(&device, 0) || cuDevicePrimaryCtxRetain(&context, device) ||
        cuCtxSetCurrent(context))
        return 1;
    until = now() + (argc > 1 ? atof(argv[1]) : 1);
    for (int i = 0; i < threads; i++)
        pthread_create(&thread[i], NULL, work, (void *)(uintptr_t)(seed * 1000 + (unsigned)i));
    for (int i = 0; i < threads; i++)
        pthread_join(thread[i], NULL);
    cuCtxSynchronize();
    printf("%ld %ld %ld\n", calls, refused, other);
    size_t left, total;
    cuMemGetInfo_v2(&left, &total);
    printf("%zu\n", total - left);
    return cuDevicePrimaryCtxRelease_v2(device);
}
