/* SPDX-License-Identifier: Apache-2.0 */
#include "timing.h"

#include "capture.h"
#include "core.h"
#include "limiter.h"
#include "meter.h"
#include "spin.h"
#include "symbols.h"

#define MAX_LUMP_US 60000000LL /* a minute: thousands of squares of it fit 64 bits */

static CUevent event_for(struct gs_meter *m)
{
    CUevent event = NULL;
    if (m->spares)
        return m->spare[--m->spares];
    return GS_REAL(cuEventCreate)(&event, 0) == CUDA_SUCCESS ? event : NULL;
}

static void retire(struct gs_meter *m, CUevent event)
{
    if (!event)
        return;
    if (m->spares < GS_SPARE)
        m->spare[m->spares++] = event;
    else
        GS_REAL(cuEventDestroy_v2)(event);
}

static float elapsed_ms(CUevent from, CUevent to)
{
    float ms = 0;
    CUresult rc = GS_HAS(cuEventElapsedTime_v2) ? GS_REAL(cuEventElapsedTime_v2)(&ms, from, to)
                                                : GS_REAL(cuEventElapsedTime)(&ms, from, to);
    return rc == CUDA_SUCCESS ? ms : 0;
}

/* Busy time that a finished launch adds to what is charged already: launches that overlap on several
 * streams count as the union. Times are taken from the frontier, so floats stay precise. `further` is how
 * far it moves the frontier. */
static uint64_t busy_ns(struct gs_meter *m, const struct gs_pending *p, int64_t *further)
{
    float from = 0, to;
    if (m->frontier) {
        to = elapsed_ms(m->frontier, p->end);
        from = to > 0 ? elapsed_ms(m->frontier, p->start) : 0;
    } else {
        to = elapsed_ms(p->start, p->end);
    }
    *further = (int64_t)(to * 1e6F);
    uint64_t busy = to > (from > 0 ? from : 0) ? (uint64_t)((to - (from > 0 ? from : 0)) * 1e6F) : 0;
    return from < 0 ? busy : busy - (p->gap_ns < busy / 2 ? p->gap_ns : busy / 2);
}

/* When a launch that has ended by `now` did so. The card's clock runs beside ours at a distance that no
 * ended launch contradicts; it is let grow a little, because clocks drift. */
static uint64_t ended(struct gs_meter *m, int64_t further, uint64_t now)
{
    if (!m->frontier) {
        m->device_ns = 0;
        m->offset_ns = (int64_t)now;
        return now;
    }
    m->device_ns += further > 0 ? further : 0;
    m->offset_ns += further > 0 ? further / 8192 : 0;
    if (m->offset_ns > (int64_t)now - m->device_ns)
        m->offset_ns = (int64_t)now - m->device_ns;
    return (uint64_t)(m->device_ns + m->offset_ns);
}

/* Add to the container's sums, and remember that it was us. */
void gs_charge_time(struct gs_meter *m, struct gs_card *shared, int64_t charged, int64_t event)
{
    gs_count(&shared->charged_ns, (uint64_t)charged);
    gs_count(&shared->event_ns, (uint64_t)event);
    m->mine_charged_ns += charged;
    m->mine_event_ns += event;
}

/* Own time of a launch that had the card for `spent`, neighbours' slices included. Of a long one the host saw most: its
 * word beats the ratio of other launches, which may be there only once this one has ended. */
static uint64_t own_ns(const struct gs_meter *m, const struct gs_pending *p, uint64_t spent)
{
    uint64_t from = p->fed_sample_ns ? p->fed_sample_ns : p->launched_ns;
    int64_t span = (int64_t)(m->fed_sample_ns - from), own = (int64_t)(m->fed_own_ns - p->fed_own_ns);
    if (spent < GS_LONG_NS || !m->fed || span < (int64_t)spent / 2 || own < 0 || own > span)
        return gs_corrected(m, spent);
    return spent / 1000 * (uint64_t)(own / (span / 1000));
}

/* One launch is known to have ended: learn, and put right what was charged for it. pre: entered. */
static void conclude(struct gs_meter *m, int card, struct gs_pending *p, uint64_t now)
{
    struct gs_card *shared = &gs.region->cards[card];
    int64_t further;
    uint64_t spent = busy_ns(m, p, &further);
    gs_cost_learn(p->cost, spent);
    __atomic_fetch_sub(&m->unknown, p->unknown, __ATOMIC_ACQ_REL);
    uint64_t own = own_ns(m, p, spent);
    int64_t more = (int64_t)(own - gs_corrected(m, p->charged_ns)) * p->weight;
    int64_t more_event = (int64_t)(spent - p->charged_ns) * p->weight;
    int64_t lump_us = (more_event - more_event / p->weight) / 1000;
    lump_us = lump_us < -MAX_LUMP_US ? -MAX_LUMP_US : lump_us > MAX_LUMP_US ? MAX_LUMP_US : lump_us;
    m->batch_error_us2 += (uint64_t)(lump_us * lump_us);
    if (m->rate_ppm && p->paid)
        gs_bucket_correct(&shared->paid_until_ns, more, m->rate_ppm);
    int64_t ahead = (int64_t)(own - spent / GS_PPM * m->rate_ppm);
    if (spent > GS_OVERRUN_NS && m->rate_ppm && p->paid && ahead > 0)
        gs_count(&shared->overrun_ns, (uint64_t)ahead);
    gs_charge_time(m, shared, more, more_event);
    gs_meter_ran(m, ended(m, further, now), spent, (int64_t)gs_corrected(m, p->charged_ns) + more,
                 (int64_t)p->charged_ns + more_event);
    if (!m->frontier || further > 0) {
        retire(m, m->frontier);
        m->frontier = p->end;
    } else {
        retire(m, p->end);
    }
    retire(m, p->start);
    *p = (struct gs_pending){0};
}

/* Conclude what has ended; oldest first, stopping at the first that has not. pre: entered. */
void gs_timing_poll(struct gs_meter *m, int card)
{
    int mode;
    if (!m->count || !gs_capture_relax(&mode))
        return;
    uint64_t now = gs_now_ns();
    while (m->count) {
        struct gs_pending *p = &m->pending[m->first % GS_PENDING];
        CUresult rc = GS_REAL(cuEventQuery)(p->end);
        if (rc == CUDA_ERROR_NOT_READY)
            break;
        if (rc == CUDA_SUCCESS)
            conclude(m, card, p, now);
        else
            __atomic_fetch_sub(&m->unknown, p->unknown, __ATOMIC_ACQ_REL); /* a sick context: let it go */
        m->first++;
        m->count--;
        m->concluded_ns = now;
    }
    gs_capture_restore(mode);
}

/* Is a launch under way, or not known to have ended, that is a long one by now? */
int gs_timing_long(const struct gs_meter *m, uint64_t now)
{
    return m->count && (int64_t)(now - m->pending[m->first % GS_PENDING].launched_ns) > (int64_t)GS_OVERRUN_NS;
}

/* GPU time that is queued and not begun, about. */
int64_t gs_timing_queued(const struct gs_meter *m, uint64_t now)
{
    if (!m->count)
        return 0;
    const struct gs_pending *oldest = &m->pending[m->first % GS_PENDING];
    uint64_t begun = oldest->launched_ns > m->concluded_ns ? oldest->launched_ns : m->concluded_ns;
    return (int64_t)(m->queued_ns - oldest->queued_ns) - (int64_t)(now - begun);
}

/* Events belong to a context: after a switch the old ones are let go. pre: entered. */
static void mind_context(struct gs_meter *m)
{
    uint64_t context = 0;
    CUcontext now = NULL;
    if (GS_REAL(cuCtxGetCurrent)(&now) == CUDA_SUCCESS)
        context = (uint64_t)now;
    if (context == m->context)
        return;
    for (; m->count; m->first++, m->count--)
        __atomic_fetch_sub(&m->unknown, m->pending[m->first % GS_PENDING].unknown, __ATOMIC_ACQ_REL);
    m->frontier = NULL;
    m->spares = 0;
    m->context = context;
}

/* Has all that was launched so far ended, as far as costs tell? */
int gs_timing_idle(struct gs_meter *m, uint64_t now)
{
    uint64_t until = m->busy_until_ns + m->queued_ns - m->busy_queued_ns;
    m->busy_until_ns = until < now ? now : until;
    m->busy_queued_ns = m->queued_ns;
    return until < now;
}

/* Start the clock of a launch that is to be timed. */
void gs_timing_start(struct gs_meter *m, struct gs_launch *launch)
{
    if (!launch->charged_ns)
        gs_spin_enter(&m->lock);
    else if (!gs_meter_enter(m))
        return; /* somebody else is at the clock: this one goes by estimate */
    mind_context(m);
    launch->start = event_for(m);
    uint64_t before = gs_now_ns();
    if (launch->start && GS_REAL(cuEventRecord)(launch->start, launch->stream) != CUDA_SUCCESS) {
        retire(m, launch->start);
        launch->start = NULL;
    }
    uint64_t now = gs_now_ns();
    launch->idle_ns = gs_timing_idle(m, now) ? before + (now - before) / 2 : 0; /* the card saw it in between */
    launch->unknown = launch->start && !launch->charged_ns;
    __atomic_fetch_add(&m->unknown, launch->unknown, __ATOMIC_ACQ_REL);
    gs_meter_leave(m);
}

/* Has the event happened? */
static int happened(CUevent event)
{
    int mode;
    if (!gs_capture_relax(&mode))
        return 0;
    CUresult rc = GS_REAL(cuEventQuery)(event);
    gs_capture_restore(mode);
    return rc == CUDA_SUCCESS;
}

/* Stop it, and conclude what has ended meanwhile. */
void gs_timing_stop(struct gs_meter *m, const struct gs_launch *launch, int launched)
{
    gs_spin_enter(&m->lock);
    uint64_t now = gs_now_ns();
    int was_idle = launch->idle_ns && happened(launch->start);
    CUevent end = launched && m->count < GS_PENDING ? event_for(m) : NULL;
    if (end && GS_REAL(cuEventRecord)(end, launch->stream) == CUDA_SUCCESS) {
        m->pending[(m->first + m->count++) % GS_PENDING] =
            (struct gs_pending){.start = launch->start, .end = end, .cost = launch->cost,
                             .charged_ns = launch->charged_ns, .launched_ns = launch->now,
                             .queued_ns = m->queued_ns - launch->charged_ns, .paid = launch->rate_ppm < GS_PPM,
                             .gap_ns = was_idle ? now - launch->idle_ns : 0,
                             .fed_own_ns = m->fed_own_ns, .fed_sample_ns = m->fed_sample_ns,
                             .weight = launch->weight, .unknown = (uint16_t)launch->unknown};
    } else {
        retire(m, end);
        retire(m, launch->start);
        __atomic_fetch_sub(&m->unknown, launch->unknown, __ATOMIC_ACQ_REL);
    }
    if (now - m->poll_ns > 50000 || m->count > GS_PENDING / 2) {
        m->poll_ns = now;
        gs_timing_poll(m, launch->card);
    }
    gs_meter_leave(m);
}
