/* SPDX-License-Identifier: Apache-2.0 */
#include "meter.h"

#include "core.h"
#include "limits.h"

#define STALE_NS 250000000ULL
#define SILENT_NS 5000000000LL /* samples older than this say nothing about now */
#define OWED_NS 600000000LL    /* wall time that may be made up for at most: older wrongs are forgotten */
#define REPAY_NS 1500000000LL   /* how long making up takes: windows of a second must not show it */
#define LATELY_NS 800000000LL  /* how fast the ratio forgets */
#define EDGE_NS 8000000LL      /* what may lie on either side of a sample's edge */
#define SURELY 4
#define COARSE_PPM 8000        /* samples as coarse as this say nothing within their rounding */
#define STEEPEST_PPM 500000    /* charges are never raised or lowered by more */

static int64_t within(int64_t value, int64_t most) { return value > most ? most : value < -most ? -most : value; }

/* Make room for what runs from now on. */
static void clear_spans(struct gs_meter *m, uint64_t now)
{
    uint64_t first = m->spans_ns / GS_SPAN_NS + 1, last = now / GS_SPAN_NS + GS_SPANS / 8;
    if (last - first > GS_SPANS)
        first = last - GS_SPANS;
    for (uint64_t i = first; i <= last; i++)
        m->span[i % GS_SPANS] = (struct gs_span){0};
    m->spans_ns = last * GS_SPAN_NS;
}

/* Something that was charged ran for `length` up to `end`: spread over the spans that it touches. Of what is longer
 * than they reach the end is kept. pre: entered. */
void gs_meter_ran(struct gs_meter *m, uint64_t end, uint64_t length, int64_t charged, int64_t event)
{
    if (length > GS_LONG_NS) {
        int64_t kept = (int64_t)(GS_LONG_NS / (length / 1000000 + 1)); /* in millionths */
        charged = charged / 1000000 * kept;
        event = event / 1000000 * kept;
        length = GS_LONG_NS;
    }
    length = length < 1 ? 1 : length;
    uint64_t begin = end - length;
    for (uint64_t at = begin; at < end;) {
        uint64_t next = (at / GS_SPAN_NS + 1) * GS_SPAN_NS;
        next = next < end ? next : end;
        struct gs_span *span = &m->span[at / GS_SPAN_NS % GS_SPANS];
        int64_t part = (int64_t)((next - at) * 65536 / length);
        span->charged_ns += charged / 65536 * part + charged % 65536 * part / 65536;
        span->event_ns += event / 65536 * part + event % 65536 * part / 65536;
        at = next;
    }
}

/* What the other processes of the container charged since the last look, spread over the time between. */
static void note_others(struct gs_meter *m, const struct gs_card *shared, uint64_t now)
{
    uint64_t charged = __atomic_load_n(&shared->charged_ns, __ATOMIC_RELAXED);
    uint64_t event = __atomic_load_n(&shared->event_ns, __ATOMIC_RELAXED);
    int64_t more = (int64_t)(charged - m->sum_charged_ns) - m->mine_charged_ns;
    int64_t more_event = (int64_t)(event - m->sum_event_ns) - m->mine_event_ns;
    if (m->refresh_ns && (more || more_event))
        gs_meter_ran(m, now, now - m->refresh_ns, more, more_event);
    m->sum_charged_ns = charged;
    m->sum_event_ns = event;
    m->mine_charged_ns = m->mine_event_ns = 0;
}

/* What ran between two moments, the spans at both ends in proportion. 0 where that is too long ago. */
static int recall(const struct gs_meter *m, uint64_t from, uint64_t to, struct gs_span *out)
{
    uint64_t first = from / GS_SPAN_NS, last = to / GS_SPAN_NS;
    *out = (struct gs_span){0};
    if (from >= to || m->spans_ns / GS_SPAN_NS - first >= GS_SPANS)
        return 0;
    for (uint64_t i = first; i <= last; i++) {
        uint64_t begin = i == first ? from - i * GS_SPAN_NS : 0, end = i == last ? to - i * GS_SPAN_NS : GS_SPAN_NS;
        int64_t part = (int64_t)(end - begin);
        const struct gs_span *span = &m->span[i % GS_SPANS];
        out->charged_ns += span->charged_ns / 1024 * part / (int64_t)(GS_SPAN_NS / 1024);
        out->event_ns += span->event_ns / 1024 * part / (int64_t)(GS_SPAN_NS / 1024);
    }
    return 1;
}

/* The square root, rounded down. */
static int64_t root(uint64_t of)
{
    uint64_t found = 0;
    for (uint64_t bit = 1ULL << 31; bit; bit >>= 1)
        if ((found | bit) * (found | bit) <= of)
            found |= bit;
    return (int64_t)found;
}

/* Own time per event time of late. Where rounding and the edges of the interval explain the difference,
 * events are believed: alone on a card they are exact. A sample that is rounded by more than all that ran tells
 * nothing: a tenant that all but waits keeps its ratio until it computes again. pre: entered. */
static void learn_ratio(struct gs_meter *m, int64_t own, int64_t event, int64_t error_now)
{
    struct gs_compared *c = &m->compared;
    if (event < error_now)
        return;
    int64_t since = within((int64_t)(c->at - c->learnt) * 1000 / LATELY_NS, 10000);
    int64_t keep = 1000000 / (1000 + since + since * since / 2000); /* thousandths: near e^-since */
    c->learnt = c->at;
    c->own_sum = c->own_sum * keep / 1000 + own;
    c->event_sum = c->event_sum * keep / 1000 + event;
    c->error_sum = c->error_sum * keep / 1000 + error_now;
    int64_t apart = c->own_sum - c->event_sum, error = c->error_sum + EDGE_NS;
    if (c->event_sum < 1000000)
        return;
    if (apart <= error && -apart <= error)
        m->factor_ppm = GS_PPM;
    else
        m->factor_ppm = (uint64_t)c->own_sum * 1000 / (uint64_t)(c->event_sum / 1000 + 1);
    m->factor_ppm = m->factor_ppm < 50000 ? 50000 : m->factor_ppm > 4 * GS_PPM ? 4 * GS_PPM : m->factor_ppm;
}

/* Past charges missed `sure` of own time: it is owed. Once for the container, whichever process comes first. */
static void owe(struct gs_meter *m, struct gs_card *shared, int64_t sure)
{
    int64_t most = OWED_NS / 1000 * m->rate_ppm / 1000;
    int64_t owed = within(__atomic_load_n(&shared->owed_ns, __ATOMIC_RELAXED) + sure, most);
    __atomic_store_n(&shared->owed_ns, owed, __ATOMIC_RELAXED);
    __atomic_fetch_add(&shared->corrected_ns, sure, __ATOMIC_RELAXED);
}

/* The host's sample says how much of the card's time was ours; events also count neighbours' slices. The
 * ratio serves the charges to come; what past charges missed is owed. Single samples are rounded and their
 * edges blurred: only what goes beyond such errors in sum is owed. pre: entered, a sample is waiting. */
static void compare(struct gs_meter *m, struct gs_card *shared)
{
    struct gs_compared *c = &m->compared, was = *c;
    struct gs_span ran;
    c->at = was.next;
    c->own_ns = was.next_own_ns;
    c->sampled_ns = was.next_sampled_ns;
    c->next = 0;
    uint64_t since = was.at;
    int ours =
        __atomic_compare_exchange_n(&shared->fed_sample_ns, &since, c->at, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
    if (!ours && (int64_t)(since - c->at) < 0)
        __atomic_store_n(&shared->fed_sample_ns, c->at, __ATOMIC_RELEASE);
    __atomic_store_n(&shared->fed_own_ns, c->own_ns, __ATOMIC_RELAXED);
    int64_t span = (int64_t)(c->at - was.at), own = (int64_t)(c->own_ns - was.own_ns);
    int64_t covered = c->sampled_ns ? (int64_t)(c->sampled_ns - was.sampled_ns) : span;
    if (covered < span / 16 * 15)
        span = covered; /* one was lost, or nobody computed: a sample speaks for the time right before it */
    if (!was.at || own < 0 || span <= 0 || !recall(m, c->at - (uint64_t)span, c->at, &ran))
        return; /* a first sample, or one from before our time: only a place to count from */
    int64_t rounding = span / 1000 * (int64_t)was.next_rounding_ppm / 1000;
    int64_t lumps = 3000 * root(m->batch_error_us2);
    m->batch_error_us2 = 0;
    int implausible = own > ran.event_ns + ran.event_ns / 4 + rounding + EDGE_NS;
    c->implausible = implausible ? c->implausible + 1 : 0;
    if (implausible && c->implausible < SURELY)
        return; /* a sample that speaks for less time than we think; again and again: launches unseen by us */
    /* where single launches stood for many, those ran at other times */
    if (ran.event_ns <= span + EDGE_NS && lumps <= own / 2 + EDGE_NS)
        learn_ratio(m, own, ran.event_ns, rounding + lumps);
    int64_t missed = own - ran.charged_ns;
    if (was.next_rounding_ppm < COARSE_PPM || within(missed, rounding + EDGE_NS) != missed)
        c->unsettled_ns += missed;
    int64_t sure = c->unsettled_ns - within(c->unsettled_ns, rounding + EDGE_NS);
    c->unsettled_ns -= sure;
    if (sure && ours)
        owe(m, shared, sure);
}

/* A new sample waits until the launches before it have ended, so that it is known what ran then. */
static void take_sample(struct gs_meter *m, struct gs_card *shared, const struct gs_feed_card *fed)
{
    struct gs_compared *c = &m->compared;
    if (!c->next && (int64_t)(fed->sample_ns - c->at) > 0 && fed->sample_ns < m->refresh_ns) {
        c->next = fed->sample_ns;
        c->next_own_ns = fed->own_ns;
        c->next_sampled_ns = fed->sampled_ns;
        c->next_rounding_ppm = fed->rounding_ppm;
    }
    if (c->next && (!m->count || m->pending[m->first % GS_PENDING].launched_ns >= c->next))
        compare(m, shared);
}

/* What is owed is paid with the charges of the next while. pre: entered. */
static void lean(struct gs_meter *m, struct gs_card *shared)
{
    int64_t owed = __atomic_load_n(&shared->owed_ns, __ATOMIC_RELAXED);
    int64_t due = REPAY_NS / 1000 * m->rate_ppm / 1000;
    m->repay_ppm = owed && due ? (int32_t)within(within(owed, due) * 1000 / (due / 1000 + 1), STEEPEST_PPM) : 0;
}

/* The container obeys another rate from now on: what it owes is paid at that one. Who waited with a small part of the
 * card goes on as soon as it has more. Once for the container, whichever process comes first. */
static void restate(struct gs_card *shared, uint64_t now, uint32_t rate_ppm)
{
    uint32_t was = __atomic_load_n(&shared->rate_ppm, __ATOMIC_RELAXED);
    if (was == rate_ppm ||
        !__atomic_compare_exchange_n(&shared->rate_ppm, &was, rate_ppm, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
        return;
    int64_t debt = gs_bucket_debt(&shared->paid_until_ns, now);
    if (was && rate_ppm && debt > 0)
        gs_bucket_pay(&shared->paid_until_ns, debt - gs_bucket_restated(debt, was, rate_ppm));
}

/* The rate granted now: the host's word while it is fresh, else the promise. pre: entered. */
void gs_meter_refresh(struct gs_meter *m, int card, uint64_t now)
{
    static struct gs_feed feeds[GS_CARDS];
    struct gs_feed *feed = &feeds[card]; /* private to the card, whose lock we hold */
    const struct gs_limit_card *promise = &gs.card[card];
    struct gs_card *shared = &gs.region->cards[card];
    if (m->refresh_ns && (int64_t)(now - m->refresh_ns) < (int64_t)GS_FEED_NS)
        return;
    clear_spans(m, now);
    note_others(m, shared, now);
    m->refresh_ns = now;
    m->random = m->random ? m->random : now << 1 | 1;
    m->rate_ppm = promise->policy == GS_POLICY_NONE || promise->core_ppm >= GS_PPM ? 0 : promise->core_ppm;
    m->fed = gs_feed_read(gs.feed_path, feed) == 0 && (uint32_t)card < feed->card_count &&
             (int64_t)(now - feed->written_ns) < (int64_t)STALE_NS;
    if (m->fed && m->rate_ppm && feed->cards[card].rate_ppm && promise->policy != GS_POLICY_FIXED)
        m->rate_ppm = feed->cards[card].rate_ppm < GS_PPM ? feed->cards[card].rate_ppm : (uint32_t)GS_PPM;
    if (promise->ceiling_ppm && promise->policy != GS_POLICY_NONE)
        m->rate_ppm = m->rate_ppm && m->rate_ppm < promise->ceiling_ppm ? m->rate_ppm : promise->ceiling_ppm;
    m->borrowing = m->rate_ppm > promise->core_ppm;
    if (m->fed) {
        m->fed_own_ns = feed->cards[card].own_ns;
        m->fed_sample_ns = feed->cards[card].sample_ns;
        take_sample(m, shared, &feed->cards[card]);
    }
    int sampled = m->compared.at && (int64_t)(now - m->compared.at) < SILENT_NS;
    if (!sampled || !m->factor_ppm) /* one late writing of the feed is no reason to forget the ratio */
        m->factor_ppm = GS_PPM;
    lean(m, shared);
    restate(shared, now, m->rate_ppm);
    __atomic_store_n(&shared->flags, sampled && m->fed ? 0U : GS_CARD_UNCORRECTED, __ATOMIC_RELAXED);
}
