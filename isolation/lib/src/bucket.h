/* SPDX-License-Identifier: Apache-2.0 */
/* The compute limit of one card, shared by every process of the container: a debt of GPU time.
 *
 * `paid_until` is when everything charged so far is paid for at the granted rate. Work may start
 * when that is past; idle time is credited for GS_CREDIT_NS at most. One word, so a process killed
 * anywhere leaves nothing to repair. Pure but for the atomics.
 */
#ifndef GS_BUCKET_H
#define GS_BUCKET_H

#include <stdint.h>

#define GS_CREDIT_NS 20000000ULL /* wall time of idling that may be made up for */
#define GS_PPM 1000000ULL

int64_t gs_bucket_debt(const uint64_t *paid_until, uint64_t now);
void gs_bucket_charge(uint64_t *paid_until, uint64_t now, uint64_t cost_ns, uint32_t rate_ppm);
int64_t gs_bucket_restated(int64_t debt, uint32_t was_ppm, uint32_t rate_ppm);
void gs_bucket_pay(uint64_t *paid_until, int64_t wall_ns);
void gs_bucket_correct(uint64_t *paid_until, int64_t cost_ns, uint32_t rate_ppm);

/* What launches cost, learnt per kernel and size of its grid. */
struct gs_cost {
    uint64_t key;       /* 0: free */
    uint64_t mean_ns;   /* 0: not known yet */
    uint16_t samples;
    uint16_t hot;    /* launches still to be timed because one of them was long */
    uint16_t steady; /* samples without a surprise that make it steady, beyond GS_STEADY */
};

#define GS_TIME_ALL_NS 100000 /* launches that cost more are all timed, cheaper ones some at random */
#define GS_FIRST 192 /* so many launches of a kernel are timed one by one, to see whether they differ */
#define GS_ONE_IN 8
#define GS_STEADY_ONE_IN 48 /* of kernels whose last timed launches held no surprise */
#define GS_STEADY 256       /* so many; after each surprise eight times as many */
#define GS_HOT 256  /* after a long launch so many short ones of the same kernel are timed too: programs have periods */
#define GS_HOTTER 8192 /* after more than one */

struct gs_cost *gs_cost_find(uint64_t function, uint64_t blocks);
void gs_cost_learn(struct gs_cost *cost, uint64_t sample_ns);
uint32_t gs_cost_timed(struct gs_cost *cost, uint64_t *random);

#endif
