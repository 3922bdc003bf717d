/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels of libraries: the driver loads a library into a context when something of it is first used there. */
#ifndef GS_MODULE_H
#define GS_MODULE_H

#include "cuda_subset.h"
#include "sys.h"

#define GS_READY 1024 /* a power of two */

/* Of hook.c. */
extern uint32_t gs_kernels;          /* 1 once this process was given a kernel of a library */
extern uint64_t gs_ready[GS_READY];  /* functions whose launch loads nothing more, each in the place of its hash */

CUresult gs_kernel_first(CUfunction function, const char *api);

static inline uint64_t *gs_ready_place(CUfunction function)
{
    return &gs_ready[(uint64_t)function / 8 * 0x9E3779B97F4A7C15ULL >> 54];
}

/* Before a launch: charge the library that the function belongs to, where it is not loaded yet. */
static inline CUresult gs_kernel_ready(CUfunction function, const char *api)
{
    if (GS_LIKELY(!__atomic_load_n(&gs_kernels, __ATOMIC_RELAXED)) ||
        GS_LIKELY(__atomic_load_n(gs_ready_place(function), __ATOMIC_RELAXED) == (uint64_t)function))
        return CUDA_SUCCESS;
    return gs_kernel_first(function, api);
}

#endif
