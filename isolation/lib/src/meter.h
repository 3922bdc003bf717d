/* SPDX-License-Identifier: Apache-2.0 */
/* What a process knows about one card's time: timed launches under way, and the host's word. */
#ifndef GS_METER_H
#define GS_METER_H

#include "bucket.h"
#include "cuda_subset.h"

#define GS_PENDING 256 /* timed launches whose end is awaited, per card */
#define GS_SPARE 64    /* events kept for reuse, per card */
#define GS_FEED_NS 20000000ULL /* how often the host's word is read */
#define GS_SPAN_NS (1ULL << 24) /* 17 ms: what ran is remembered in steps of this */
#define GS_SPANS 512            /* 8.6 s back: samples may be a second apart, late, and some missing */
#define GS_LONG_NS (GS_SPANS / 2 * GS_SPAN_NS) /* what ran longer than this is remembered by its end alone */
#define GS_OVERRUN_NS 1000000000ULL /* a kernel that runs longer than this is more than its part of any second */

struct gs_pending {
    CUevent start, end;
    struct gs_cost *cost;
    uint64_t charged_ns;
    uint64_t launched_ns;
    uint64_t queued_ns; /* cost of all launches before it */
    uint64_t gap_ns;    /* between its first event and its launch, where nothing else was queued */
    uint64_t fed_own_ns, fed_sample_ns; /* the host's word when it was launched */
    uint32_t weight;
    uint16_t unknown; /* its cost was not known when it was launched */
    uint16_t paid;    /* at a rate below the whole card */
};

/* What ran in one span of time, as far as it was charged. */
struct gs_span {
    int64_t charged_ns, event_ns;
};

/* The host's last samples, and what they taught. */
struct gs_compared {
    uint64_t at, own_ns, sampled_ns;                   /* compared already */
    uint64_t next, next_own_ns, next_sampled_ns, next_rounding_ppm; /* waits until all that ran then has ended */
    uint64_t learnt;                                   /* time of the last sample that changed the sums */
    int64_t own_sum, event_sum, error_sum; /* of late: older samples count less and less */
    int64_t unsettled_ns;          /* own time less charges, not yet beyond the samples' error */
    uint32_t implausible;            /* samples in a row that show more own time than events */
};

struct gs_meter {
    uint32_t lock;
    uint32_t rate_ppm; /* 0: no limit */
    uint32_t fed;
    uint32_t many; /* launches on more than one stream lately: time them all */
    uint32_t first, count, spares;
    uint32_t unknown; /* launches of unknown cost under way */
    int32_t repay_ppm; /* charges are raised by this part, to pay what is owed */
    uint32_t borrowing; /* granted more than was promised: what is queued must be little, to be given back soon */
    uint64_t refresh_ns, poll_ns, random;
    uint64_t queued_ns;    /* cost of all launches so far, as estimated */
    uint64_t concluded_ns; /* when a timed launch was last seen to have ended */
    uint64_t busy_until_ns, busy_queued_ns; /* when all launches up to that sum of costs will have ended, about */
    uint64_t fed_own_ns, fed_sample_ns; /* the host's last sample; 0: none */
    uint64_t factor_ppm; /* own time per event time, lately */
    uint64_t batch_error_us2;  /* squares of what single timings said for many launches, since the last sample */
    uint64_t spans_ns;   /* the history is clear up to here */
    int64_t mine_charged_ns, mine_event_ns;   /* added to the shared sums by this process since the last look */
    uint64_t sum_charged_ns, sum_event_ns;    /* the shared sums then */
    uint64_t context;    /* the events below belong to it */
    int64_t device_ns;   /* the frontier, on a clock that began with the context */
    int64_t offset_ns;   /* CLOCK_MONOTONIC less that clock, at most */
    CUstream last_stream;
    CUevent frontier; /* the latest end seen: what lies before it is charged already */
    struct gs_pending pending[GS_PENDING];
    CUevent spare[GS_SPARE];
    struct gs_span span[GS_SPANS];
    struct gs_compared compared;
};

void gs_meter_refresh(struct gs_meter *meter, int card, uint64_t now);
void gs_meter_ran(struct gs_meter *meter, uint64_t end, uint64_t length, int64_t charged, int64_t event);

/* A launch that is not timed ran about when it was launched. */
static inline void gs_meter_ran_now(struct gs_meter *meter, uint64_t now, uint64_t charged, uint64_t event)
{
    struct gs_span *span = &meter->span[now / GS_SPAN_NS % GS_SPANS];
    span->charged_ns += (int64_t)charged;
    span->event_ns += (int64_t)event;
}

static inline int gs_meter_enter(struct gs_meter *meter)
{
    return !__atomic_exchange_n(&meter->lock, 1, __ATOMIC_ACQUIRE);
}

static inline void gs_meter_leave(struct gs_meter *meter) { __atomic_store_n(&meter->lock, 0, __ATOMIC_RELEASE); }

/* A statistic: an update lost between two processes does no harm, a locked add per launch would cost. */
static inline void gs_count(uint64_t *to, uint64_t value)
{
    __atomic_store_n(to, __atomic_load_n(to, __ATOMIC_RELAXED) + value, __ATOMIC_RELAXED);
}

/* Event time as own time, by the ratio of late. */
static inline uint64_t gs_corrected(const struct gs_meter *meter, uint64_t ns)
{
    return ns * meter->factor_ppm / GS_PPM;
}

#endif
