#include "limiter.h"

#include "core.h"
#include "meter.h"
#include "spin.h"
#include "symbols.h"

#define LEAD_NS 1000000LL      /* shorter debts are not slept for: a sleep overshoots by 0.1 ms */
#define BURST_LEAD_NS 40000000LL /* how far ahead of an idle neighbour's card we queue */
#define NAP_NS 20000000ULL
#define SICK_NS 120000000000LL /* a longer debt is a scribbled or foreign clock, not work */
#define UNKNOWN_WAIT_NS 500000000ULL /* a kernel that waits for its successor must not hang */

static struct gs_meter meters[GS_CARDS];
static int32_t captures;

static int try_enter(struct gs_meter *m) { return !__atomic_exchange_n(&m->lock, 1, __ATOMIC_ACQUIRE); }
static void leave(struct gs_meter *m) { __atomic_store_n(&m->lock, 0, __ATOMIC_RELEASE); }

/* A statistic: an update lost between two processes does no harm, a locked add per launch would cost. */
static void add(uint64_t *to, uint64_t value)
{
    __atomic_store_n(to, __atomic_load_n(to, __ATOMIC_RELAXED) + value, __ATOMIC_RELAXED);
}

void gs_capture_began(void) { __atomic_fetch_add(&captures, 1, __ATOMIC_ACQ_REL); }

void gs_capture_ended(void)
{
    if (__atomic_fetch_sub(&captures, 1, __ATOMIC_ACQ_REL) <= 0)
        __atomic_fetch_add(&captures, 1, __ATOMIC_ACQ_REL);
}

/* Is work on this stream recorded instead of run? */
int gs_capturing(CUstream stream)
{
    int status = 0;
    if (GS_LIKELY(__atomic_load_n(&captures, __ATOMIC_ACQUIRE) == 0))
        return 0;
    return GS_REAL(cuStreamIsCapturing)(stream, &status) == CUDA_SUCCESS && status != 0;
}

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
 * streams count as the union. Times are taken from the frontier, so floats stay precise. */
static uint64_t busy_ns(struct gs_meter *m, const struct gs_pending *p)
{
    float from = 0, to;
    if (m->frontier) {
        from = elapsed_ms(m->frontier, p->start);
        to = elapsed_ms(m->frontier, p->end);
    } else {
        to = elapsed_ms(p->start, p->end);
    }
    from = from > 0 ? from : 0;
    return to > from ? (uint64_t)((to - from) * 1e6F) : 0;
}

/* One launch is known to have ended: learn, and put right what was charged for it. pre: entered. */
static void conclude(struct gs_meter *m, int card, struct gs_pending *p)
{
    struct gs_card *shared = &gs.region->cards[card];
    uint64_t spent = busy_ns(m, p);
    gs_cost_learn(p->cost, spent);
    __atomic_fetch_sub(&p->cost->in_flight, 1, __ATOMIC_ACQ_REL);
    int64_t more = (int64_t)(gs_corrected(m, spent) - gs_corrected(m, p->charged_ns)) * p->weight;
    if (m->rate_ppm)
        gs_bucket_correct(&shared->paid_until_ns, more, m->rate_ppm);
    add(&shared->charged_ns, (uint64_t)more);
    add(&shared->event_ns, (spent - p->charged_ns) * p->weight);
    if (!m->frontier || elapsed_ms(m->frontier, p->end) > 0) {
        retire(m, m->frontier);
        m->frontier = p->end;
    } else {
        retire(m, p->end);
    }
    retire(m, p->start);
    *p = (struct gs_pending){0};
}

/* Conclude what has ended; oldest first, stopping at the first that has not. pre: entered, no
 * capture under way (querying would spoil it). */
static void poll(struct gs_meter *m, int card)
{
    while (m->count) {
        struct gs_pending *p = &m->pending[m->first % GS_PENDING];
        CUresult rc = GS_REAL(cuEventQuery)(p->end);
        if (rc == CUDA_ERROR_NOT_READY)
            return;
        if (rc == CUDA_SUCCESS)
            conclude(m, card, p);
        else
            __atomic_fetch_sub(&p->cost->in_flight, 1, __ATOMIC_ACQ_REL); /* a sick context: let it go */
        m->first++;
        m->count--;
    }
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
        __atomic_fetch_sub(&m->pending[m->first % GS_PENDING].cost->in_flight, 1, __ATOMIC_ACQ_REL);
    m->frontier = NULL;
    m->spares = 0;
    m->context = context;
}

/* Sleep until the debt is paid; the rate may change meanwhile. Returns the time then. */
static uint64_t wait_for_turn(struct gs_meter *m, int card)
{
    struct gs_card *shared = &gs.region->cards[card];
    uint64_t began = gs_now_ns(), now = began;
    for (;;) {
        int64_t debt = gs_bucket_debt(&shared->paid_until_ns, now);
        uint32_t rate = __atomic_load_n(&m->rate_ppm, __ATOMIC_RELAXED);
        if (debt > SICK_NS)
            __atomic_store_n(&shared->paid_until_ns, now, __ATOMIC_RELAXED), debt = 0;
        int64_t lead = rate >= GS_PPM ? BURST_LEAD_NS : now == began ? LEAD_NS : 0;
        if (rate == 0 || debt <= lead)
            break;
        __atomic_store_n(&shared->wanted_ns, now, __ATOMIC_RELAXED);
        uint64_t nap = (uint64_t)(debt - (rate >= GS_PPM ? lead : 0));
        gs_sleep_ns(nap < NAP_NS ? nap : NAP_NS);
        now = gs_now_ns();
        gs_look(now);
        if (try_enter(m)) {
            gs_meter_look(m, card, now);
            if (__atomic_load_n(&captures, __ATOMIC_ACQUIRE) == 0)
                poll(m, card);
            leave(m);
        }
    }
    if (now != began)
        add(&shared->throttled_ns, now - began);
    return now;
}

/* A launch of unknown cost waits for the one before it, whose cost it will have. */
static void wait_to_know(struct gs_meter *m, int card, struct gs_cost *cost)
{
    uint64_t began = gs_now_ns(), nap = 20000;
    while (__atomic_load_n(&cost->mean_ns, __ATOMIC_ACQUIRE) == 0 &&
           __atomic_load_n(&cost->in_flight, __ATOMIC_ACQUIRE) && gs_now_ns() - began < UNKNOWN_WAIT_NS) {
        if (try_enter(m)) {
            poll(m, card);
            leave(m);
        }
        if (__atomic_load_n(&cost->mean_ns, __ATOMIC_ACQUIRE))
            break;
        gs_sleep_ns(nap);
        nap = nap < 1000000 ? nap * 2 : nap;
    }
}

static uint32_t worth_timing(struct gs_meter *m, struct gs_cost *cost, CUstream stream)
{
    if (GS_UNLIKELY(stream != m->last_stream)) {
        m->last_stream = stream;
        m->many = 64;
    } else if (GS_UNLIKELY(m->many)) {
        m->many--;
    }
    if (m->count == GS_PENDING || __atomic_load_n(&captures, __ATOMIC_ACQUIRE))
        return 0;
    return m->many ? 1 : gs_cost_timed(cost, &m->random);
}

static void start_clock(struct gs_meter *m, struct gs_launch *launch)
{
    if (!try_enter(m))
        return; /* somebody else is at the clock: this one goes by estimate */
    mind_context(m);
    launch->start = event_for(m);
    if (launch->start && GS_REAL(cuEventRecord)(launch->start, launch->stream) != CUDA_SUCCESS) {
        retire(m, launch->start);
        launch->start = NULL;
    }
    if (launch->start)
        __atomic_fetch_add(&launch->cost->in_flight, 1, __ATOMIC_ACQ_REL);
    leave(m);
}

/* Before a launch: wait for our turn, charge what it will probably cost, start the clock if it is to
 * be timed. Fills `launch`; pair with gs_launch_end(). pre: gs.compute. */
void gs_launch_begin(struct gs_launch *launch, uint64_t function, uint64_t blocks, CUstream stream)
{
    int card = gs_card_here();
    launch->cost = NULL;
    if (gs.mode != GS_MODE_ACTIVE || card < 0 || gs_capturing(stream))
        return;
    struct gs_meter *m = &meters[card];
    uint64_t now = gs_coarse_ns(); /* up to 4 ms behind: a debt only seems larger, and is then looked at closely */
    gs_look(now);
    if (GS_UNLIKELY((int64_t)(now - m->look_ns) >= (int64_t)GS_FEED_NS) && try_enter(m)) {
        gs_meter_look(m, card, now);
        leave(m);
    }
    if (!m->rate_ppm)
        return;
    struct gs_cost *cost = gs_cost_find(function, blocks);
    if (GS_UNLIKELY(!cost->mean_ns) && cost->in_flight && __atomic_load_n(&captures, __ATOMIC_ACQUIRE) == 0)
        wait_to_know(m, card, cost);
    if (gs_bucket_debt(&gs.region->cards[card].paid_until_ns, now) > LEAD_NS)
        now = wait_for_turn(m, card);
    *launch = (struct gs_launch){.cost = cost, .stream = stream, .card = card, .rate_ppm = m->rate_ppm,
                                 .charged_ns = cost->mean_ns, .now = now};
    launch->weight = worth_timing(m, cost, stream);
    if (launch->weight)
        start_clock(m, launch);
}

static void stop_clock(struct gs_meter *m, const struct gs_launch *launch, int launched)
{
    gs_spin_enter(&m->lock);
    CUevent end = launched && m->count < GS_PENDING ? event_for(m) : NULL;
    if (end && GS_REAL(cuEventRecord)(end, launch->stream) == CUDA_SUCCESS) {
        m->pending[(m->first + m->count++) % GS_PENDING] =
            (struct gs_pending){.start = launch->start, .end = end, .cost = launch->cost,
                             .charged_ns = launch->charged_ns, .weight = launch->weight};
    } else {
        retire(m, end);
        retire(m, launch->start);
        __atomic_fetch_sub(&launch->cost->in_flight, 1, __ATOMIC_ACQ_REL);
    }
    uint64_t now = gs_now_ns();
    if ((now - m->poll_ns > 50000 || m->count > GS_PENDING / 2) && __atomic_load_n(&captures, __ATOMIC_ACQUIRE) == 0) {
        m->poll_ns = now;
        poll(m, launch->card);
    }
    leave(m);
}

/* After the launch: charge it if the driver took it, and stop its clock. */
void gs_launch_end(struct gs_launch *launch, CUresult rc)
{
    if (!launch->cost)
        return;
    struct gs_meter *m = &meters[launch->card];
    struct gs_card *shared = &gs.region->cards[launch->card];
    if (rc == CUDA_SUCCESS) {
        uint64_t cost = gs_corrected(m, launch->charged_ns);
        gs_bucket_charge(&shared->paid_until_ns, launch->now, cost, launch->rate_ppm);
        add(&shared->charged_ns, cost);
        add(&shared->event_ns, launch->charged_ns);
        add(&shared->launches, 1);
        __atomic_store_n(&shared->wanted_ns, launch->now, __ATOMIC_RELAXED);
    }
    if (launch->start)
        stop_clock(m, launch, rc == CUDA_SUCCESS);
}

/* A forked child times nothing of its parent's. */
void gs_limiter_forget(void)
{
    for (int i = 0; i < GS_CARDS; i++)
        meters[i] = (struct gs_meter){.factor_ppm = GS_PPM};
    captures = 0;
}
