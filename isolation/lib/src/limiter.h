/* SPDX-License-Identifier: Apache-2.0 */
/* Holds launches back so that a container gets its part of a card's time. */
#ifndef GS_LIMITER_H
#define GS_LIMITER_H

#include "cuda_subset.h"

struct gs_cost;

/* One launch between gs_launch_begin() and gs_launch_end(). */
struct gs_launch {
    struct gs_cost *cost; /* NULL: not limited */
    CUstream stream;
    CUevent start;
    uint64_t charged_ns;
    uint64_t now; /* when it began, after any wait */
    int32_t card;
    uint32_t rate_ppm;
    uint32_t weight; /* launches that this timing stands for */
    uint32_t unknown;
    uint64_t idle_ns; /* when its clock was started, if the card had nothing else of ours then */
};

void gs_launch_begin(struct gs_launch *launch, uint64_t function, uint64_t blocks, CUstream stream);
void gs_launch_end(struct gs_launch *launch, CUresult rc);
void gs_limiter_after_wait(void);

#endif
