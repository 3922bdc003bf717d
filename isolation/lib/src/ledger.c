/* SPDX-License-Identifier: Apache-2.0 */
#include "ledger.h"

#include <errno.h>

#include "sys.h"

#define SEQ20 0xfffffULL
#define OWNERS (GS_SLOTS * GS_LANES)

static uint64_t word_used(uint64_t word) { return word & 0xffffffffULL; }
static uint32_t word_owner(uint64_t word) { return (word >> GS_WORD_OWNER_SHIFT) & (OWNERS - 1); }
static uint64_t word_seq(uint64_t word) { return word >> GS_WORD_SEQ_SHIFT; }

static uint64_t word_make(uint64_t used, uint32_t owner, uint64_t seq)
{
    return used | (uint64_t)owner << GS_WORD_OWNER_SHIFT | (seq & SEQ20) << GS_WORD_SEQ_SHIFT;
}

static uint64_t lane_seq(uint64_t lane) { return lane >> GS_LANE_SEQ_SHIFT; }

/* Signed: one thread may free through its lane what another reserved through its own. */
static int64_t lane_used(uint64_t lane)
{
    return (int64_t)(lane << (64 - GS_LANE_SEQ_SHIFT)) >> (64 - GS_LANE_SEQ_SHIFT);
}

static uint64_t lane_make(int64_t used, uint64_t seq)
{
    return ((uint64_t)used & ((1ULL << GS_LANE_SEQ_SHIFT) - 1)) | seq << GS_LANE_SEQ_SHIFT;
}

static uint64_t load(const uint64_t *from) { return __atomic_load_n(from, __ATOMIC_ACQUIRE); }

static int swap(uint64_t *at, uint64_t expected, uint64_t desired)
{
    return __atomic_compare_exchange_n(at, &expected, desired, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
}

static struct gs_lane *lane_of(struct gs_region *region, uint32_t card, uint32_t owner)
{
    return &region->slots[owner / GS_LANES].lanes[card][owner % GS_LANES];
}

/* Finish the step that `word` names, if its owner has not. Idempotent; any process may call it.
 * The intent stays as it is until the state has taken it over, so reading it late is safe. */
static void finish(struct gs_region *region, uint32_t card, uint64_t word)
{
    struct gs_lane *lane = lane_of(region, card, word_owner(word));
    uint64_t state = load(&lane->state);
    if ((lane_seq(state) & SEQ20) == word_seq(word))
        return;
    uint64_t intent = load(&lane->intent);
    if ((lane_seq(intent) & SEQ20) == word_seq(word))
        swap(&lane->state, state, intent);
}

/* Granules that hold `bytes`. */
uint64_t gs_granules(uint64_t bytes)
{
    uint64_t whole = bytes / GS_GRANULE;
    return bytes % GS_GRANULE ? whole + 1 : whole;
}

/* Bytes reserved on the card now. */
uint64_t gs_used(const struct gs_region *region, uint32_t card)
{
    return word_used(load(&region->cards[card].word)) * GS_GRANULE;
}

/* Finish whatever step is under way on the card. */
void gs_settle(struct gs_region *region, uint32_t card)
{
    finish(region, card, load(&region->cards[card].word));
}

/* One step through a lane that the caller alone uses: the lane gains `gain` granules (negative:
 * gives back). Returns 0, or -ENOMEM where the card would pass `limit` granules. */
static int step(struct gs_region *region, uint32_t card, uint32_t owner, int64_t gain, uint64_t limit)
{
    struct gs_lane *lane = lane_of(region, card, owner);
    uint64_t *word = &region->cards[card].word;
    uint64_t state = load(&lane->state);
    uint64_t seq = (lane_seq(state) + 1) & ((1ULL << (64 - GS_LANE_SEQ_SHIFT)) - 1);
    __atomic_store_n(&lane->intent, lane_make(lane_used(state) + gain, seq), __ATOMIC_RELEASE);
    for (;;) {
        uint64_t seen = load(word), used = word_used(seen), next;
        finish(region, card, seen);
        if (gain > 0) {
            if (used > limit || (uint64_t)gain > limit - used)
                return -ENOMEM;
            next = used + (uint64_t)gain;
        } else {
            next = used > (uint64_t)-gain ? used - (uint64_t)-gain : 0; /* a scribbled word stays sane */
        }
        uint64_t mine = word_make(next, owner, seq);
        if (swap(word, seen, mine)) {
            finish(region, card, mine);
            return 0;
        }
    }
}

/* A lane of this process that no other thread is inside of. */
static uint32_t enter(const struct gs_account *account, uint32_t card)
{
    uint32_t lane = gs_thread_hash() % GS_LANES;
    for (uint32_t tries = 0;; tries++) {
        uint8_t expected = 0;
        if (__atomic_compare_exchange_n(&account->busy[card][lane], &expected, 1, 0, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED))
            return lane;
        lane = (lane + 1) % GS_LANES;
        if (tries % (4 * GS_LANES) == 4 * GS_LANES - 1)
            gs_yield(); /* more threads than lanes, one of them preempted inside */
    }
}

static int move(const struct gs_account *account, uint32_t card, int64_t gain, uint64_t limit)
{
    uint32_t lane = enter(account, card);
    int rc = step(account->region, card, account->slot * GS_LANES + lane, gain, limit);
    __atomic_store_n(&account->busy[card][lane], 0, __ATOMIC_RELEASE);
    return rc;
}

/* Reserve before the driver is asked. Returns 0, or -ENOMEM with nothing reserved where the card
 * would pass `limit` granules. The caller owes one gs_refund() of the same amount. */
int gs_reserve(const struct gs_account *account, uint32_t card, uint64_t granules, uint64_t limit)
{
    if (limit > 0xffffffffULL)
        limit = 0xffffffffULL;
    if (granules > limit)
        return -ENOMEM;
    return granules ? move(account, card, (int64_t)granules, limit) : 0;
}

/* Give back what gs_reserve() took. Never fails. */
void gs_refund(const struct gs_account *account, uint32_t card, uint64_t granules)
{
    if (granules)
        (void)move(account, card, -(int64_t)granules, 0);
}

/* What a slot holds on a card, in bytes, counting only finished steps. Single lanes may have wrapped
 * round where one thread allocates and another frees for weeks; their sum is right all the same. */
int64_t gs_slot_used(const struct gs_region *region, uint32_t slot, uint32_t card)
{
    uint64_t sum = 0;
    for (uint32_t lane = 0; lane < GS_LANES; lane++)
        sum += load(&region->slots[slot].lanes[card][lane].state);
    return lane_used(sum) * (int64_t)GS_GRANULE;
}

/* Give back what a dead slot holds beyond `keep` bytes per card (NULL: nothing is kept); returns the
 * bytes. One step per card; lanes may be left unequal, only their sum means anything. pre: the caller
 * holds the slot's lock, so nobody else steps through its lanes. Killed half-way, the next caller
 * goes on. */
uint64_t gs_empty_slot(struct gs_region *region, uint32_t slot, const uint64_t keep[GS_CARDS])
{
    uint64_t given = 0;
    for (uint32_t card = 0; card < GS_CARDS; card++) {
        gs_settle(region, card);
        int64_t surplus = gs_slot_used(region, slot, card) / (int64_t)GS_GRANULE;
        surplus -= keep ? (int64_t)gs_granules(keep[card]) : 0;
        if (surplus <= 0)
            continue;
        (void)step(region, card, slot * GS_LANES, -surplus, 0);
        given += (uint64_t)surplus;
    }
    return given * GS_GRANULE;
}
