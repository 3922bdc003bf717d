/* What the library costs: run with and without the preload and subtract.
 *
 *   bench [LIVE]   prints `name median mean` in nanoseconds; LIVE allocations are held meanwhile
 *
 * Medians are over calls timed one by one (the clock's own cost taken off), means over all calls,
 * timed launches with their events included.
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "../include/cuda_subset.h"

#define CALLS 20000

extern CUresult cuDeviceGet(CUdevice *, int), cuCtxSetCurrent(CUcontext);

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static int order(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static double sample[CALLS], clock_cost;

static void report(const char *name)
{
    double sum = 0;
    for (int i = 0; i < CALLS; i++)
        sum += sample[i];
    qsort(sample, CALLS, sizeof *sample, order);
    printf("%s %.1f %.1f\n", name, sample[CALLS / 2] - clock_cost, sum / CALLS - clock_cost);
}

#define MEASURE(name, work)                \
    do {                                   \
        for (int i = 0; i < CALLS; i++) {  \
            double start = now();          \
            work;                          \
            sample[i] = now() - start;     \
        }                                  \
        if (*(name))                       \
            report(name);                  \
    } while (0)

int main(int argc, char **argv)
{
    CUdevice device;
    CUcontext context;
    CUdeviceptr at;
    size_t left, total;
    uint64_t none = 0;
    void *parameters[] = {&none};
    if (cuInit(0) || cuDeviceGet(&device, 0) || cuDevicePrimaryCtxRetain(&context, device) || cuCtxSetCurrent(context))
        return 1;
    MEASURE("", (void)0);
    qsort(sample, CALLS, sizeof *sample, order);
    clock_cost = sample[CALLS / 2];
    for (int i = 0, live = argc > 1 ? atoi(argv[1]) : 1; i < live; i++)
        if (cuMemAlloc_v2(&at, 1024))
            return 1;
    MEASURE("", (cuMemAlloc_v2(&at, 1024), cuMemFree_v2(at)));
    MEASURE("alloc+free", (cuMemAlloc_v2(&at, 1024), cuMemFree_v2(at)));
    MEASURE("meminfo", cuMemGetInfo_v2(&left, &total));
    MEASURE("", cuLaunchKernel((CUfunction)1, 1, 1, 1, 1, 1, 1, 0, 0, parameters, 0));
    MEASURE("launch", cuLaunchKernel((CUfunction)1, 1, 1, 1, 1, 1, 1, 0, 0, parameters, 0));
    return 0;
}
