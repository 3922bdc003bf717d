/* What a process knows about one card's time: timed launches under way, and the host's word. */
#ifndef GS_METER_H
#define GS_METER_H

#include "bucket.h"
#include "cuda_subset.h"

#define GS_PENDING 256 /* timed launches whose end is awaited, per card */
#define GS_SPARE 64    /* events kept for reuse, per card */
#define GS_HISTORY 64  /* looks kept, to know what was charged when the host's sample was taken */
#define GS_FEED_NS 20000000ULL /* how often the host's word is read */

struct gs_pending {
    CUevent start, end;
    struct gs_cost *cost;
    uint64_t charged_ns;
    uint32_t weight;
};

/* What had been charged at a moment, by every process of the container. */
struct gs_past {
    uint64_t at, charged_ns, event_ns;
};

struct gs_meter {
    uint32_t lock;
    uint32_t rate_ppm; /* 0: no limit */
    uint32_t fed;
    uint32_t many; /* launches on more than one stream lately: time them all */
    uint32_t first, count, spares, looks;
    uint64_t look_ns, poll_ns, random;
    uint64_t factor_ppm; /* own time per event time, lately */
    uint64_t context;    /* the events below belong to it */
    CUstream last_stream;
    CUevent frontier; /* the latest end seen: what lies before it is charged already */
    struct gs_pending pending[GS_PENDING];
    CUevent spare[GS_SPARE];
    struct gs_past past[GS_HISTORY];
};

void gs_meter_look(struct gs_meter *meter, int card, uint64_t now);

/* Event time as own time, by the ratio of late. */
static inline uint64_t gs_corrected(const struct gs_meter *meter, uint64_t ns)
{
    return ns * meter->factor_ppm / GS_PPM;
}

#endif
