/* SPDX-License-Identifier: Apache-2.0 */
/* What the library costs: run with and without the preload and subtract.
 *
 *   bench [LIVE]   prints `name median mean` in nanoseconds; LIVE allocations are held meanwhile
 *   bench start    prints how long it took to have a context and memory, then waits for its input to end
 *
 * Medians are over calls timed one by one (the clock's own cost taken off), means over all calls,
 * timed launches with their events included.
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
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

/* Kernels come a few microseconds apart, so that no limit makes them wait: costs are looked for, not waits. */
static void pause_ns(double ns)
{
    for (double end = now() + ns; ns > 0 && now() < end;)
        ;
}

#define MEASURE(name, work) MEASURE_APART(name, 0, work)
#define MEASURE_APART(name, apart, work)   \
    do {                                   \
        for (int i = 0; i < CALLS; i++) {  \
            pause_ns(apart);               \
            double start = now();          \
            work;                          \
            sample[i] = now() - start;     \
        }                                  \
        if (*(name))                       \
            report(name);                  \
    } while (0)

static int start(void)
{
    CUcontext context;
    CUdeviceptr at;
    double began = now();
    if (cuInit(0) || cuDevicePrimaryCtxRetain(&context, 0) || cuCtxSetCurrent(context) || cuMemAlloc_v2(&at, 1024))
        return 1;
    printf("start %.0f\n", now() - began);
    fflush(stdout);
    return getchar() != EOF;
}

int main(int argc, char **argv)
{
    CUdevice device;
    CUcontext context;
    CUdeviceptr at;
    size_t left, total;
    uint64_t none = 0;
    void *parameters[] = {&none};
    if (argc > 1 && !strcmp(argv[1], "start"))
        return start();
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
    MEASURE_APART("", 3000, cuLaunchKernel((CUfunction)1, 1, 1, 1, 1, 1, 1, 0, 0, parameters, 0));
    MEASURE_APART("launch", 3000, cuLaunchKernel((CUfunction)1, 1, 1, 1, 1, 1, 1, 0, 0, parameters, 0));
    return 0;
}
