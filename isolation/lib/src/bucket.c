/* SPDX-License-Identifier: Apache-2.0 */
#include "bucket.h"

#include <stddef.h>

#define COSTS 4096 /* a power of two; later kernels share the last place looked at */
#define PROBES 16
#define MAX_RESTATED_NS 3600000000000LL /* an hour: products stay within 64 bits */

static struct gs_cost costs[COSTS];

/* Nanoseconds until everything charged is paid for; negative: credit. */
int64_t gs_bucket_debt(const uint64_t *paid_until, uint64_t now)
{
    return (int64_t)(__atomic_load_n(paid_until, __ATOMIC_RELAXED) - now);
}

static uint64_t stretched(uint64_t cost_ns, uint32_t rate_ppm)
{
    if (cost_ns > 3600000000000ULL)
        cost_ns = 3600000000000ULL; /* an hour: a sick clock must not block for good */
    return rate_ppm ? cost_ns * GS_PPM / rate_ppm : 0;
}

/* Charge GPU time at a rate; idle time before `now` counts for GS_CREDIT_NS at most. */
void gs_bucket_charge(uint64_t *paid_until, uint64_t now, uint64_t cost_ns, uint32_t rate_ppm)
{
    uint64_t span = stretched(cost_ns, rate_ppm), floor = now - GS_CREDIT_NS;
    uint64_t seen = __atomic_load_n(paid_until, __ATOMIC_RELAXED), next;
    do
        next = ((int64_t)(seen - floor) < 0 ? floor : seen) + span;
    while (!__atomic_compare_exchange_n(paid_until, &seen, next, 1, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED));
}

/* The time that a debt takes at another rate. */
int64_t gs_bucket_restated(int64_t debt, uint32_t was_ppm, uint32_t rate_ppm)
{
    if (debt > MAX_RESTATED_NS)
        debt = MAX_RESTATED_NS;
    int64_t gpu_ns = debt / 1000 * was_ppm / 1000;
    return rate_ppm ? gpu_ns * 1000 / rate_ppm * 1000 : debt;
}

/* So much wall time less is owed; below 0: more. */
void gs_bucket_pay(uint64_t *paid_until, int64_t wall_ns)
{
    (void)__atomic_fetch_sub(paid_until, (uint64_t)wall_ns, __ATOMIC_ACQ_REL);
}

/* A cost that was charged turned out larger or smaller by `cost_ns`. */
void gs_bucket_correct(uint64_t *paid_until, int64_t cost_ns, uint32_t rate_ppm)
{
    uint64_t span = stretched((uint64_t)(cost_ns < 0 ? -cost_ns : cost_ns), rate_ppm);
    (void)__atomic_fetch_add(paid_until, cost_ns < 0 ? -span : span, __ATOMIC_ACQ_REL);
}

/* The cost of a kernel at this order of magnitude of blocks. Never NULL. */
struct gs_cost *gs_cost_find(uint64_t function, uint64_t blocks)
{
    uint64_t key = (function ^ (uint64_t)(63 - __builtin_clzll(blocks | 1)) << 56) | 1ULL << 63;
    uint64_t at = key * 0x9E3779B97F4A7C15ULL >> 52;
    struct gs_cost *c = NULL;
    for (int probe = 0; probe < PROBES; probe++, at++) {
        c = &costs[at & (COSTS - 1)];
        uint64_t seen = __atomic_load_n(&c->key, __ATOMIC_ACQUIRE);
        if (seen == key)
            return c;
        if (!seen && __atomic_compare_exchange_n(&c->key, &seen, key, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
            return c;
        if (seen == key)
            return c;
    }
    return c;
}

/* One more sample: the plain mean at first, then an average over about the last eight. */
void gs_cost_learn(struct gs_cost *cost, uint64_t sample_ns)
{
    uint64_t mean = __atomic_load_n(&cost->mean_ns, __ATOMIC_RELAXED);
    uint32_t weight = cost->samples < 7 ? cost->samples + 1 : 8;
    int64_t next = (int64_t)mean + ((int64_t)sample_ns - (int64_t)mean) / (int64_t)weight;
    cost->samples += cost->samples < GS_STEADY + cost->steady;
    if (cost->samples > 8 && sample_ns > 4 * mean + GS_TIME_ALL_NS / 8) {
        cost->samples = 8;
        cost->steady = (uint16_t)(cost->steady > 4096 ? cost->steady : cost->steady * 8 + GS_STEADY);
    }
    if (sample_ns > GS_TIME_ALL_NS)
        cost->hot = cost->steady > GS_STEADY ? GS_HOTTER : GS_HOT;
    __atomic_store_n(&cost->mean_ns, next > 0 ? (uint64_t)next : 1, __ATOMIC_RELAXED);
}

/* Should this launch be timed, and for how many does it stand then? 0: not; 1: all are timed; more: it
 * was drawn, so what its estimate was wrong by counts that often. That keeps the sum of charges
 * right whatever the costs are. Drawn at random, because programs repeat themselves in periods. */
uint32_t gs_cost_timed(struct gs_cost *cost, uint64_t *random)
{
    uint64_t mean = __atomic_load_n(&cost->mean_ns, __ATOMIC_RELAXED);
    if (mean == 0 || mean > GS_TIME_ALL_NS || cost->samples < GS_FIRST)
        return 1;
    if (cost->hot) {
        cost->hot--;
        return 1;
    }
    *random ^= *random << 13; /* xorshift64; a lost update between threads does no harm */
    *random ^= *random >> 7;
    *random ^= *random << 17;
    uint32_t one_in = cost->samples < GS_STEADY + cost->steady ? GS_ONE_IN : GS_STEADY_ONE_IN;
    return (*random >> 32) % one_in ? 0 : one_in;
}
