#include "meter.h"

#include "core.h"
#include "limits.h"

#define STALE_NS 250000000ULL
#define SURE_NS 500000000LL /* no single sample moves the debt by more */

static void remember(struct gs_meter *m, const struct gs_card *shared, uint64_t now)
{
    m->past[m->looks++ % GS_HISTORY] =
        (struct gs_past){.at = now, .charged_ns = __atomic_load_n(&shared->charged_ns, __ATOMIC_RELAXED),
                      .event_ns = __atomic_load_n(&shared->event_ns, __ATOMIC_RELAXED)};
}

/* What had been charged at time `at`, between two looks in proportion. 0 where we did not look then. */
static int recall(const struct gs_meter *m, uint64_t at, struct gs_past *out)
{
    for (uint32_t i = m->looks; i > 1 && m->looks - i < GS_HISTORY - 1; i--) {
        const struct gs_past *after = &m->past[(i - 1) % GS_HISTORY], *before = &m->past[(i - 2) % GS_HISTORY];
        if (at > after->at || at < before->at)
            continue;
        int64_t span = (int64_t)(after->at - before->at), part = span ? (int64_t)(at - before->at) * 1024 / span : 0;
        int64_t charged = (int64_t)(after->charged_ns - before->charged_ns); /* corrections may lower it */
        int64_t event = (int64_t)(after->event_ns - before->event_ns);
        out->charged_ns = before->charged_ns + (uint64_t)(charged * part / 1024);
        out->event_ns = before->event_ns + (uint64_t)(event * part / 1024);
        return 1;
    }
    return 0;
}

/* The host's sample says how much of the card's time was ours; events also count neighbours' slices.
 * Charges between the last sample and this one are put right in full, by one process of the
 * container; the ratio serves the charges until the next. pre: entered. */
static void compare(struct gs_meter *m, int card, const struct gs_feed_card *fed)
{
    struct gs_card *shared = &gs.region->cards[card];
    uint64_t since = __atomic_load_n(&shared->fed_sample_ns, __ATOMIC_ACQUIRE), own = shared->fed_own_ns;
    struct gs_past from, to;
    if ((int64_t)(fed->sample_ns - since) <= 0 || !recall(m, fed->sample_ns, &to) ||
        !__atomic_compare_exchange_n(&shared->fed_sample_ns, &since, fed->sample_ns, 0, __ATOMIC_ACQ_REL,
                                     __ATOMIC_ACQUIRE))
        return;
    __atomic_store_n(&shared->fed_own_ns, fed->own_ns, __ATOMIC_RELEASE);
    if (!since || fed->own_ns < own || !recall(m, since, &from))
        return; /* the first sample, or one from before our time: only a place to count from */
    int64_t more = (int64_t)(fed->own_ns - own) - (int64_t)(to.charged_ns - from.charged_ns);
    more = more > SURE_NS ? SURE_NS : more < -SURE_NS ? -SURE_NS : more;
    __atomic_fetch_add(&shared->corrected_ns, more, __ATOMIC_RELAXED);
    if (m->rate_ppm)
        gs_bucket_correct(&shared->paid_until_ns, more, m->rate_ppm);
    int64_t spent = (int64_t)(to.event_ns - from.event_ns);
    if (spent > 1000000) {
        uint64_t ratio = (fed->own_ns - own) * GS_PPM / (uint64_t)spent;
        ratio = ratio < 50000 ? 50000 : ratio > 2000000 ? 2000000 : ratio;
        m->factor_ppm = (m->factor_ppm * 7 + ratio) / 8;
    }
}

/* The rate granted now: the host's word while it is fresh, else the promise. pre: entered. */
void gs_meter_look(struct gs_meter *m, int card, uint64_t now)
{
    static struct gs_feed feeds[GS_CARDS];
    struct gs_feed *feed = &feeds[card]; /* private to the card, whose lock we hold */
    const struct gs_limit_card *promise = &gs.card[card];
    struct gs_card *shared = &gs.region->cards[card];
    if (m->look_ns && (int64_t)(now - m->look_ns) < (int64_t)GS_FEED_NS)
        return;
    m->look_ns = now;
    remember(m, shared, now);
    m->random = m->random ? m->random : now << 1 | 1;
    m->rate_ppm = promise->policy == GS_POLICY_NONE || promise->core_ppm >= GS_PPM ? 0 : promise->core_ppm;
    m->fed = gs_feed_read(gs.feed_path, feed) == 0 && (uint32_t)card < feed->card_count &&
             (int64_t)(now - feed->written_ns) < (int64_t)STALE_NS;
    if (!m->fed) {
        m->factor_ppm = GS_PPM;
    } else {
        compare(m, card, &feed->cards[card]);
        if (m->rate_ppm && feed->cards[card].rate_ppm && promise->policy != GS_POLICY_FIXED)
            m->rate_ppm = feed->cards[card].rate_ppm < GS_PPM ? feed->cards[card].rate_ppm : (uint32_t)GS_PPM;
    }
    __atomic_store_n(&shared->rate_ppm, m->rate_ppm, __ATOMIC_RELAXED);
    __atomic_store_n(&shared->flags, m->fed ? 0U : GS_CARD_UNCORRECTED, __ATOMIC_RELAXED);
}
