/* SPDX-License-Identifier: Apache-2.0 */
#include "sample.h"

#include "limits.h"
#include "spin.h"

#define LATE_NS 2000000000ULL /* a feed older than this has no writer: its last figures stand on conditions */
#define WAIT_NS 400000000ULL  /* for the first sample of a new guess, before a refusal: a few of the host's cycles */
#define NAP_NS 5000000

uint64_t gs_samples[GS_CARDS];

static uint32_t lock;
static struct gs_feed last; /* the last feed that could be believed */

/* Does a process live that the sample can have counted? */
static int measured_lives(uint64_t sample_ns)
{
    uint32_t high = __atomic_load_n(&gs.region->slots_high, __ATOMIC_ACQUIRE);
    for (uint32_t i = 0; i < high && i < GS_SLOTS; i++) {
        struct gs_slot *slot = &gs.region->slots[i];
        if (__atomic_load_n(&slot->state, __ATOMIC_ACQUIRE) == GS_SLOT_LIVE && slot->taken_ns <= sample_ns)
            return 1;
    }
    return 0;
}

/* 1 while the host writes the feed. */
static int written(uint64_t now) { return last.magic && (int64_t)(now - last.written_ns) < (int64_t)LATE_NS; }

/* pre: entered */
static void look(void)
{
    static struct gs_feed feed;
    if (gs_feed_read(gs.feed_path, &feed) == 0)
        last = feed;
    int fresh = written(gs_now_ns());
    for (uint32_t i = 0; i < gs.cards; i++) {
        const struct gs_feed_card *card = &last.cards[i];
        int valid = i < last.card_count && card->memory_flags & GS_MEMORY_VALID;
        uint64_t sample = (uint64_t)(uint32_t)card->excess_granules << 32 | card->released_granules;
        if (!valid || (!fresh && !measured_lives(card->memory_ns)))
            sample = 0;
        __atomic_store_n(&gs_samples[i], sample, __ATOMIC_RELAXED);
    }
}

/* Take over what the host wrote last, if nobody else is at it. */
void gs_sample_refresh(void)
{
    if (__atomic_exchange_n(&lock, 1, __ATOMIC_ACQUIRE))
        return;
    look();
    gs_spin_leave(&lock);
}

/* Is a refusal of `wanted` granules due to guesses that no sample has measured yet? */
static int unmeasured(int card, uint64_t wanted)
{
    uint64_t guessed = 0, since = 0;
    uint32_t high = __atomic_load_n(&gs.region->slots_high, __ATOMIC_ACQUIRE);
    for (uint32_t i = 0; i < high && i < GS_SLOTS; i++) {
        const struct gs_slot *slot = &gs.region->slots[i];
        guessed += __atomic_load_n(&slot->guessed[card], __ATOMIC_RELAXED) / GS_GRANULE;
        since = slot->guessed_ns > since ? slot->guessed_ns : since;
    }
    uint64_t used = gs_used(gs.region, (uint32_t)card) / GS_GRANULE;
    return since > last.cards[card].memory_ns && (uint32_t)card < last.card_count &&
           (used > guessed ? used - guessed : 0) + wanted <= gs.card[card].memory_bytes / GS_GRANULE;
}

/* Before a refusal of `wanted` granules: read the feed, and where a guess is newer than the sample, wait for the next
 * one while the host writes. 1 where there is more room now. */
int gs_sample_renew(int card, uint64_t wanted)
{
    uint64_t room = gs_chargeable(card), begun = gs_now_ns(), now = begun;
    for (int again = 1; again; now = gs_now_ns()) {
        gs_spin_enter(&lock);
        look();
        again = last.cards[card].memory_flags & GS_MEMORY_VALID && written(now) && now - begun < WAIT_NS &&
                unmeasured(card, wanted);
        gs_spin_leave(&lock);
        if (again)
            gs_sleep_ns(NAP_NS);
    }
    return gs_chargeable(card) > room;
}

/* A forked child: whoever read the feed is not in it. */
static void forget_all(void) { __atomic_store_n(&lock, 0, __ATOMIC_RELEASE); }

GS_FORGET_AFTER_FORK(forget_all);
