/* SPDX-License-Identifier: Apache-2.0 */
#include "small.h"

#include "charge.h"
#include "table.h"

/* Blocks that are charged and not in use: one is held before the driver is asked, because it may
 * open a new block; at most one is kept while small allocations live, which is while they have blocks:
 * most calls neither open nor close one. */
static struct {
    int32_t spare;
    int32_t blocks;
} __attribute__((aligned(64))) cards[GS_CARDS];

static int take_spare(int card)
{
    int32_t seen = __atomic_load_n(&cards[card].spare, __ATOMIC_SEQ_CST);
    while (seen > 0)
        if (__atomic_compare_exchange_n(&cards[card].spare, &seen, seen - 1, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
            return 1;
    return 0;
}

static void put_spare(int card)
{
    int32_t none = 0;
    if (__atomic_load_n(&cards[card].blocks, __ATOMIC_ACQUIRE) > 0 &&
        __atomic_compare_exchange_n(&cards[card].spare, &none, 1, 0, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED) &&
        (__atomic_load_n(&cards[card].blocks, __ATOMIC_SEQ_CST) > 0 || !take_spare(card)))
        return; /* else the last one went meanwhile, and found no spare to give back */
    gs_charge_undo(card, GS_BLOCK);
}

/* Hold a block before the driver is asked. CUDA_SUCCESS, or CUDA_ERROR_OUT_OF_MEMORY with the breach
 * recorded. Pair with gs_small_end(). */
CUresult gs_small_begin(int card, uint64_t bytes, const char *api)
{
    if (card >= 0 && gs.mode == GS_MODE_ACTIVE && gs_account() && !gs_over_limit(card) && take_spare(card)) {
        gs_refresh(gs_coarse_ns());
        return CUDA_SUCCESS;
    }
    gs_in_flight(card, GS_BLOCK);
    if (gs_try_charge(card, GS_BLOCK) == 0)
        return CUDA_SUCCESS;
    gs_charge_done(card, GS_BLOCK);
    gs_breach(card == GS_CARD_UNLISTED ? GS_BREACH_UNLISTED : GS_BREACH_DENIED, card, bytes, api);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

/* The driver has answered: the held block is used up if the address opened one, else kept or given back. */
void gs_small_end(int card, int made, uint64_t at)
{
    int64_t users = made ? gs_table_count(at / GS_BLOCK, GS_KIND_BLOCK, 1) : 0;
    if (users == 1)
        __atomic_fetch_add(&cards[card].blocks, 1, __ATOMIC_ACQ_REL);
    if (!made || users > 1)
        put_spare(card);
    else
        gs_charge_done(card, GS_BLOCK);
}

/* A small allocation is gone; the last one of a block gives it back, the last one of all the spare. */
void gs_small_freed(int card, uint64_t at)
{
    if (gs_table_count(at / GS_BLOCK, GS_KIND_BLOCK, -1) != 0)
        return;
    gs_uncharge(card, GS_BLOCK);
    if (__atomic_sub_fetch(&cards[card].blocks, 1, __ATOMIC_SEQ_CST) == 0 && take_spare(card))
        gs_charge_undo(card, GS_BLOCK);
}

/* A forked child has none. */
static void forget_all(void)
{
    for (int card = 0; card < GS_CARDS; card++)
        cards[card].spare = cards[card].blocks = 0;
}

GS_FORGET_AFTER_FORK(forget_all);
