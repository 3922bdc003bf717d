/* SPDX-License-Identifier: Apache-2.0 */
#include "charge.h"

#include <errno.h>

#include "ring.h"
#include "sample.h"
#include "slot.h"

static void raise_peak(int card, uint64_t used)
{
    uint64_t *peak = &gs.region->cards[card].peak_bytes, seen = __atomic_load_n(peak, __ATOMIC_RELAXED);
    while (used > seen && !__atomic_compare_exchange_n(peak, &seen, used, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
        ;
}

/* Both ends of the list, made by the linker. */
extern gs_reclaim *const __start_gs_reclaim_list[] __attribute__((visibility("hidden")));
extern gs_reclaim *const __stop_gs_reclaim_list[] __attribute__((visibility("hidden")));

void gs_refresh_now(uint64_t coarse_ns)
{
    if (gs_promise_refresh(coarse_ns))
        gs_sample_refresh();
}

/* What dead processes hold, and what this one holds without need; the bytes given back. */
static uint64_t reclaim(int card, const struct gs_account *account)
{
    uint64_t bytes = gs_reap(gs.region, gs.region_path, (int)account->slot, NULL);
    for (gs_reclaim *const *some = __start_gs_reclaim_list; some != __stop_gs_reclaim_list; some++)
        bytes += (*some)(card);
    return bytes;
}

/* Reserve without a breach record: 0, -ENOMEM past the promise, -ENODEV without a ledger.
 * Memory of dead processes, slack in our own pools and a sample that is older than it must be never cause a refusal. */
int gs_try_charge(int card, uint64_t bytes)
{
    gs_refresh(gs_coarse_ns());
    struct gs_account *account = gs.mode == GS_MODE_ACTIVE ? gs_account() : NULL;
    if (!account || card < 0)
        return -ENODEV;
    uint64_t granules = gs_granules(bytes);
    int rc = gs_reserve(account, (uint32_t)card, granules, gs_chargeable(card));
    if (rc < 0 && granules <= gs.card[card].memory_bytes / GS_GRANULE) {
        if (reclaim(card, account))
            rc = gs_reserve(account, (uint32_t)card, granules, gs_chargeable(card));
        if (rc < 0 && gs_sample_renew(card, granules))
            rc = gs_reserve(account, (uint32_t)card, granules, gs_chargeable(card));
    }
    if (rc == 0)
        raise_peak(card, gs_used(gs.region, (uint32_t)card));
    return rc;
}

static struct gs_slot *slot_of(int card)
{
    struct gs_account *account = gs.mode == GS_MODE_ACTIVE && card >= 0 ? gs_account() : NULL;
    return account ? &gs.region->slots[account->slot] : NULL;
}

/* More (or less) is charged for calls of this process that the driver has not answered. */
void gs_in_flight(int card, int64_t bytes)
{
    struct gs_slot *slot = slot_of(card);
    if (slot)
        __atomic_fetch_add(&slot->underway[card], (uint64_t)bytes, __ATOMIC_SEQ_CST);
}

/* The driver has answered to what gs_charge() took. */
void gs_charge_done(int card, uint64_t bytes) { gs_in_flight(card, -(int64_t)bytes); }

/* Charge before the driver is asked. CUDA_SUCCESS, or CUDA_ERROR_OUT_OF_MEMORY with nothing charged
 * and the breach recorded. The caller owes one gs_charge_done() and one gs_uncharge(). */
CUresult gs_charge(int card, uint64_t bytes, const char *api)
{
    gs_in_flight(card, (int64_t)bytes);
    if (GS_LIKELY(gs_try_charge(card, bytes) == 0))
        return CUDA_SUCCESS;
    gs_charge_done(card, bytes);
    gs_breach(card == GS_CARD_UNLISTED ? GS_BREACH_UNLISTED : GS_BREACH_DENIED, card, bytes, api);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

/* Give back what gs_charge() took. */
void gs_uncharge(int card, uint64_t bytes)
{
    struct gs_account *account = gs.mode == GS_MODE_ACTIVE ? gs_account() : NULL;
    if (account && card >= 0)
        gs_refund(account, (uint32_t)card, gs_granules(bytes));
}

/* Give back what gs_charge() took for a call that failed: in this order, so that no sample takes it for memory. */
void gs_charge_undo(int card, uint64_t bytes)
{
    gs_uncharge(card, bytes);
    gs_charge_done(card, bytes);
}

/* Bytes in use on the card: the ledger, and what the driver saw beyond it. */
static uint64_t in_use(int card)
{
    int64_t used = (int64_t)gs_used(gs.region, (uint32_t)card) + gs_excess(card) * (int64_t)GS_GRANULE;
    return used > 0 ? (uint64_t)used : 0;
}

/* Is more in use than was promised? */
int gs_over_limit(int card)
{
    return gs_excess(card) > 0 && in_use(card) > gs.card[card].memory_bytes;
}

/* Bytes of the promise that nobody holds, and the promise. */
uint64_t gs_available(int card, uint64_t *limit)
{
    gs_refresh(gs_coarse_ns());
    *limit = gs.mode == GS_MODE_ACTIVE && card >= 0 ? gs.card[card].memory_bytes : 0;
    uint64_t used = *limit ? in_use(card) : 0;
    return used < *limit ? *limit - used : 0;
}

/* Memory that crosses processes: more (or less) of ours that others may map, of theirs that we do. */
void gs_share(int card, int64_t exported, int64_t imported)
{
    struct gs_slot *slot = slot_of(card);
    if (!slot)
        return;
    __atomic_fetch_add(&slot->exported[card], (uint64_t)exported, __ATOMIC_RELAXED);
    __atomic_fetch_add(&slot->imported[card], (uint64_t)imported, __ATOMIC_RELAXED);
}

/* gs_charge_done() where what was charged is an estimate of what was made, which a sample of the host may correct. It
 * is given back by gs_estimate_uncharge(). */
void gs_estimate_done(int card, uint64_t bytes)
{
    struct gs_slot *slot = slot_of(card);
    if (!slot)
        return;
    __atomic_fetch_add(&slot->guessed[card], bytes, __ATOMIC_SEQ_CST);
    __atomic_store_n(&slot->guessed_ns, gs_now_ns(), __ATOMIC_SEQ_CST);
    gs_charge_done(card, bytes);
}

/* Give back an estimate: samples from before do not give it back once more. */
void gs_estimate_uncharge(int card, uint64_t bytes)
{
    struct gs_slot *slot = slot_of(card);
    if (!slot || !bytes)
        return;
    gs_in_flight(card, (int64_t)bytes);
    __atomic_fetch_add(&gs.region->cards[card].released_granules, gs_granules(bytes), __ATOMIC_SEQ_CST);
    __atomic_fetch_sub(&slot->guessed[card], bytes, __ATOMIC_SEQ_CST);
    gs_charge_undo(card, bytes);
}

/* More (or less) of what this process is charged may lie on the host. */
void gs_managed_more(int card, int64_t bytes)
{
    struct gs_slot *slot = slot_of(card);
    if (slot)
        __atomic_fetch_add(&slot->managed[card], (uint64_t)bytes, __ATOMIC_SEQ_CST);
}

/* Does any other process map shared memory of this card? */
int gs_mapped_elsewhere(int card)
{
    struct gs_account *account = gs.mode == GS_MODE_ACTIVE && card >= 0 ? gs_account() : NULL;
    return account && gs_imports_of(gs.region, (uint32_t)card, account->slot) > 0;
}

/* Write down what went against the promise, and say so once in a while. */
void gs_breach(enum gs_breach kind, int card, uint64_t requested, const char *api)
{
    if (!gs.region)
        return;
    struct gs_record record = {.kind = (uint16_t)kind, .card = card < 0 ? 0xffff : (uint16_t)card,
                               .requested = requested, .api = gs_crc32(api, gs_length(api))};
    if (card >= 0) {
        struct gs_card *shared = &gs.region->cards[card];
        record.used = in_use(card);
        record.limit = gs.card[card].memory_bytes;
        if (kind == GS_BREACH_DENIED) {
            __atomic_fetch_add(&shared->denied, 1, __ATOMIC_RELAXED);
            __atomic_fetch_add(&shared->denied_bytes, requested, __ATOMIC_RELAXED);
        }
    }
    gs_ring_write(gs.region, &record);
    if (kind == GS_BREACH_DENIED || kind == GS_BREACH_UNLISTED)
        gs_log("past the promised GPU memory, refused: ", api);
}
