/* SPDX-License-Identifier: Apache-2.0 */
/* Charging memory to the promise: before the driver is asked, exact in the ledger, and within what the driver's own
 * figure leaves (sample.h). Outward results are CUresult.
 */
#ifndef GS_CHARGE_H
#define GS_CHARGE_H

#include "core.h"
#include "fork.h"
#include "sys.h"

#define GS_MIB (1ULL << 20)
#define GS_CHUNK (2 * GS_MIB) /* granule of device memory */

/* Gives back what it holds of a card without need; returns the bytes. */
typedef uint64_t gs_reclaim(int card);

/* At file scope: call `function` before a charge is refused. */
#define GS_RECLAIM(function) GS_ON_LIST(gs_reclaim_list, gs_reclaim, function)

void gs_refresh_now(uint64_t coarse_ns);
CUresult gs_charge(int card, uint64_t bytes, const char *api);
int gs_try_charge(int card, uint64_t bytes);
void gs_uncharge(int card, uint64_t bytes);
uint64_t gs_available(int card, uint64_t *limit);
void gs_share(int card, int64_t exported, int64_t imported);
void gs_in_flight(int card, int64_t bytes);
void gs_charge_done(int card, uint64_t bytes);
void gs_estimate_done(int card, uint64_t bytes);
void gs_estimate_uncharge(int card, uint64_t bytes);
void gs_charge_undo(int card, uint64_t bytes);
void gs_managed_more(int card, int64_t bytes);
int gs_over_limit(int card);
int gs_mapped_elsewhere(int card);
void gs_breach(enum gs_breach kind, int card, uint64_t requested, const char *api);

/* Look for a changed promise and a new sample, where it is time. */
static inline void gs_refresh(uint64_t coarse_ns)
{
    if (GS_UNLIKELY(coarse_ns >= __atomic_load_n(&gs.refresh_ns, __ATOMIC_RELAXED)))
        gs_refresh_now(coarse_ns);
}

#endif
