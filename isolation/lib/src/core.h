/* SPDX-License-Identifier: Apache-2.0 */
/* The engine behind the hooks: whose promise this is, what is left of it, and the books.
 *
 * Started by the first hook that is called, never by a constructor. Three states: inert (no promise
 * here: everything passes), active, broken (a promise that cannot be read or booked: every charge
 * fails). Outward results are CUresult.
 */
#ifndef GS_CORE_H
#define GS_CORE_H

#include "cuda_subset.h"
#include "gpushare_abi.h"
#include "ledger.h"

#define GS_CARD_UNLISTED (-1) /* a card that was not promised: its limit is 0 */
#define GS_CARD_NONE (-2)     /* no current context: the driver shall say so itself */

enum gs_mode { GS_MODE_NEW, GS_MODE_INERT, GS_MODE_ACTIVE, GS_MODE_BROKEN };

struct gs_core {
    uint32_t mode; /* enum gs_mode */
    uint32_t flags; /* enum gs_limits_flag */
    uint32_t cards;
    uint32_t compute; /* 1 where some card has a compute limit */
    uint64_t look_ns; /* when to look at the limits again; CLOCK_MONOTONIC_COARSE */
    uint64_t generation;
    struct gs_region *region;
    struct gs_limit_card card[GS_CARDS];
    char limits_path[256], region_path[256], feed_path[256];
};

extern struct gs_core gs;

enum gs_mode gs_start(void);
void gs_look(uint64_t coarse_ns);
struct gs_desk *gs_desk(void);
int gs_card_of(CUdevice device);
int gs_card_here(void);
int gs_card_at(const struct cu_location *location);
CUresult gs_charge(int card, uint64_t bytes, const char *api);
int gs_charge_quietly(int card, uint64_t bytes);
void gs_uncharge(int card, uint64_t bytes);
uint64_t gs_left(int card, uint64_t *limit);
void gs_contexts_forget(void);
void gs_share(int card, int64_t exported, int64_t imported);
void gs_underway(int card, int64_t bytes);
void gs_landed(int card, uint64_t bytes);
void gs_guess_landed(int card, uint64_t bytes);
void gs_guess_uncharge(int card, uint64_t bytes);
void gs_charge_undo(int card, uint64_t bytes);
void gs_managed_more(int card, int64_t bytes);
int gs_over(int card);
int gs_shared_still(int card);
void gs_breach(enum gs_breach kind, int card, uint64_t requested, const char *api);

/* Is there a promise to keep? Starts the engine on the first call. */
static inline int gs_managed(void)
{
    uint32_t mode = __atomic_load_n(&gs.mode, __ATOMIC_ACQUIRE);
    if (__builtin_expect(mode == GS_MODE_NEW, 0))
        mode = gs_start();
    return mode != GS_MODE_INERT;
}

#endif
