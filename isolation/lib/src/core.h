/* SPDX-License-Identifier: Apache-2.0 */
/* The engine behind the hooks: the promise of this container, this process's place in the ledger, and which card is
 * meant. It knows nothing of its callers.
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
    uint64_t refresh_ns; /* when to look at the limits again; CLOCK_MONOTONIC_COARSE */
    uint64_t generation;
    struct gs_region *region;
    struct gs_limit_card card[GS_CARDS];
    char limits_path[256], region_path[256], feed_path[256];
};

extern struct gs_core gs;

enum gs_mode gs_start(void);
int gs_promise_refresh(uint64_t coarse_ns);
struct gs_account *gs_account(void);
int gs_card_of(CUdevice device);
int gs_card_here(void);
int gs_card_at(const struct cu_location *location);

/* Is there a promise to keep? Starts the engine on the first call. */
static inline int gs_managed(void)
{
    uint32_t mode = __atomic_load_n(&gs.mode, __ATOMIC_ACQUIRE);
    if (__builtin_expect(mode == GS_MODE_NEW, 0))
        mode = gs_start();
    return mode != GS_MODE_INERT;
}

#endif
