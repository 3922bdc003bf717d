/* SPDX-License-Identifier: Apache-2.0 */
/* The ledger: who holds how much of a card, exact at every instant, without a lock.
 *
 * A step moves `granules` from or to a card through one lane: it writes what the lane will hold
 * (the intent), swaps the card word, which names the lane and the step, and then the lane's
 * state. Whoever comes to the card next first finishes the step that the word names. So a process
 * killed between any two instructions loses nothing: before the swap nothing happened, after it
 * the next one completes it. Pure: no system calls, no clock; errors are 0 or -errno.
 */
#ifndef GS_LEDGER_H
#define GS_LEDGER_H

#include "gpushare_abi.h"

/* Where a process writes into the ledger: lanes are shared memory, `busy` is private to the process. */
struct gs_account {
    struct gs_region *region;
    uint32_t slot;
    uint8_t (*busy)[GS_LANES]; /* [card][lane] 1 while a thread is inside a step */
};

uint64_t gs_granules(uint64_t bytes);
uint64_t gs_used(const struct gs_region *region, uint32_t card);
int gs_reserve(const struct gs_account *account, uint32_t card, uint64_t granules, uint64_t limit);
void gs_refund(const struct gs_account *account, uint32_t card, uint64_t granules);
void gs_settle(struct gs_region *region, uint32_t card);
uint64_t gs_empty_slot(struct gs_region *region, uint32_t slot, const uint64_t keep[GS_CARDS]);
int64_t gs_slot_used(const struct gs_region *region, uint32_t slot, uint32_t card);

#endif
