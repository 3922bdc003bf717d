/* SPDX-License-Identifier: Apache-2.0 */
#include "limiter.h"

#include "capture.h"
#include "charge.h"
#include "meter.h"
#include "timing.h"

#define LEAD_NS 1000000LL      /* shorter debts are not slept for: a sleep overshoots by 0.1 ms */
#define BURST_LEAD_NS 25000000LL /* how far ahead of an idle neighbour's card we queue */
#define NAP_NS 20000000ULL
#define MAX_DEBT_NS 120000000000LL /* wall time that a launch waits at most for what ran before it */
#define SAID_NS 10000000000LL /* a program that waits longer than this gets a line that says why */
#define UNKNOWN_WAIT_NS 500000000ULL /* a kernel that waits for its successor must not hang */

static struct gs_meter meters[GS_CARDS];

/* Take up what has ended and what the host says. */
static void attend(struct gs_meter *m, int card, uint64_t now)
{
    if (!gs_meter_enter(m))
        return;
    if (GS_UNLIKELY(gs_timing_long(m, now)))
        gs_meter_refresh(m, card, now); /* what a long kernel had of the card is the host's to say */
    gs_timing_poll(m, card);
    gs_meter_refresh(m, card, now);
    gs_meter_leave(m);
}

/* Nanoseconds for which no launch may begin; `lead` is forgiven. Who has the whole card owes nobody. Where
 * more than the promise is granted the queue must stay short. */
static int64_t too_early(const struct gs_meter *m, struct gs_card *shared, uint64_t now, int64_t lead)
{
    int64_t debt = gs_bucket_debt(&shared->paid_until_ns, now);
    if (debt > MAX_DEBT_NS) /* the rest is forgiven; a scribbled or foreign clock blocks nobody for good */
        __atomic_store_n(&shared->paid_until_ns, now + MAX_DEBT_NS, __ATOMIC_RELAXED);
    debt = m->rate_ppm && m->rate_ppm < GS_PPM ? debt - lead : 0;
    int64_t queue = m->borrowing ? gs_timing_queued(m, now) - BURST_LEAD_NS : 0;
    return queue > debt ? queue : debt;
}

/* Sleep until the debt is paid; the rate may change meanwhile. Returns the time then. */
static uint64_t wait_for_turn(struct gs_meter *m, int card)
{
    struct gs_card *shared = &gs.region->cards[card];
    uint64_t now = gs_now_ns();
    attend(m, card, now);
    int64_t early = too_early(m, shared, now, LEAD_NS);
    if (GS_UNLIKELY(early > SAID_NS))
        gs_log("launches wait for a long kernel that took more than the promised compute", "");
    while (early > 0) {
        __atomic_store_n(&shared->wanted_ns, now, __ATOMIC_RELAXED);
        gs_sleep_ns((uint64_t)early < NAP_NS ? (uint64_t)early : NAP_NS);
        uint64_t slept = now;
        now = gs_now_ns();
        gs_count(&shared->throttled_ns, now - slept); /* at once: a long debt is seen while it is paid */
        gs_refresh(now);
        attend(m, card, now);
        early = too_early(m, shared, now, 0);
    }
    (void)gs_timing_idle(m, now);
    return now;
}

/* A launch of unknown cost waits until no other one is under way: each may be long, and a program has
 * thousands of kernels. */
static void wait_to_know(struct gs_meter *m, int card, struct gs_cost *cost)
{
    uint64_t began = gs_now_ns(), nap = 20000;
    while (__atomic_load_n(&cost->mean_ns, __ATOMIC_ACQUIRE) == 0 &&
           __atomic_load_n(&m->unknown, __ATOMIC_ACQUIRE) && gs_now_ns() - began < UNKNOWN_WAIT_NS) {
        attend(m, card, gs_now_ns());
        if (!__atomic_load_n(&m->unknown, __ATOMIC_ACQUIRE))
            break;
        gs_sleep_ns(nap);
        nap = nap < 1000000 ? nap * 2 : nap;
    }
}

/* Too many timed launches are under way to time another: an untimed one might be long. */
static void wait_for_room(struct gs_meter *m, int card)
{
    uint64_t began = gs_now_ns();
    if (gs_capture_untouchable())
        return;
    for (uint64_t now = began; m->count == GS_PENDING && now - began < UNKNOWN_WAIT_NS; now = gs_now_ns()) {
        attend(m, card, now);
        if (m->count == GS_PENDING)
            gs_sleep_ns(200000);
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
    if (m->count == GS_PENDING || gs_capture_untouchable())
        return 0;
    return m->many ? 1 : gs_cost_timed(cost, &m->random);
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
    gs_refresh(now);
    if (GS_UNLIKELY((int64_t)(now - m->refresh_ns) >= (int64_t)GS_FEED_NS))
        attend(m, card, now);
    if (!m->rate_ppm)
        return;
    struct gs_cost *cost = gs_cost_find(function, blocks);
    if (GS_UNLIKELY(!cost->mean_ns) && m->unknown && !gs_capture_untouchable())
        wait_to_know(m, card, cost);
    if (gs_bucket_debt(&gs.region->cards[card].paid_until_ns, now) > LEAD_NS ||
        (GS_UNLIKELY(m->borrowing) && gs_timing_queued(m, now) > BURST_LEAD_NS))
        now = wait_for_turn(m, card);
    if (GS_UNLIKELY(m->count == GS_PENDING))
        wait_for_room(m, card);
    *launch = (struct gs_launch){.cost = cost, .stream = stream, .card = card, .rate_ppm = m->rate_ppm,
                                 .charged_ns = cost->mean_ns, .now = now};
    launch->weight = worth_timing(m, cost, stream);
    if (launch->weight)
        gs_timing_start(m, launch);
}

/* What a charge of `cost` is raised or lowered by, to pay what is owed. */
static int64_t made_up(struct gs_meter *m, struct gs_card *shared, int64_t cost)
{
    int64_t owed = __atomic_load_n(&shared->owed_ns, __ATOMIC_RELAXED), part = cost / 1000 * m->repay_ppm / 1000;
    if ((owed > 0) != (part > 0))
        return 0;
    part = part > 0 ? (part < owed ? part : owed) : (part > owed ? part : owed);
    (void)__atomic_fetch_sub(&shared->owed_ns, part, __ATOMIC_RELAXED);
    return part;
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
        uint64_t paid = m->repay_ppm ? cost + (uint64_t)made_up(m, shared, (int64_t)cost) : cost;
        if (launch->rate_ppm < GS_PPM)
            gs_bucket_charge(&shared->paid_until_ns, launch->now, paid, launch->rate_ppm);
        gs_count(&m->queued_ns, launch->charged_ns);
        gs_charge_time(m, shared, (int64_t)cost, (int64_t)launch->charged_ns);
        if (!launch->start)
            gs_meter_ran_now(m, launch->now, cost, launch->charged_ns);
        gs_count(&shared->launches, 1);
        __atomic_store_n(&shared->wanted_ns, launch->now, __ATOMIC_RELAXED);
    }
    if (launch->start)
        gs_timing_stop(m, launch, rc == CUDA_SUCCESS);
}

/* The program has waited for the card: a long kernel that has ended is charged now, whether or not another follows. */
void gs_limiter_after_wait(void)
{
    int card;
    if (!gs_managed() || !__atomic_load_n(&gs.compute, __ATOMIC_RELAXED) || gs.mode != GS_MODE_ACTIVE ||
        (card = gs_card_here()) < 0)
        return;
    uint64_t now = gs_coarse_ns();
    if (GS_UNLIKELY(gs_timing_long(&meters[card], now)))
        attend(&meters[card], card, gs_now_ns());
}

/* A forked child times nothing of its parent's. */
static void forget_all(void)
{
    for (int i = 0; i < GS_CARDS; i++)
        if (meters[i].refresh_ns) /* pages that were never used stay untouched: starting must be quick */
            meters[i] = (struct gs_meter){0};
}

GS_FORGET_AFTER_FORK(forget_all);
