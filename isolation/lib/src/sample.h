/* SPDX-License-Identifier: Apache-2.0 */
/* The driver's figure of memory, as the host samples it: it corrects the ledger. A process-local copy, so that a
 * charge makes no system call; read again at most every REFRESH_NS, or before a refusal.
 */
#ifndef GS_SAMPLE_H
#define GS_SAMPLE_H

#include "core.h"
#include "ledger.h"
#include "sys.h"

/* By card: excess in granules (upper 32 bits, signed) | released granules at the sample (lower 32 bits). 0: none. */
extern uint64_t gs_samples[GS_CARDS];

/* Granules by which the ledger of a card is wrong now: more is in use, or less where estimates proved too high. What of
 * the estimates was given back since the sample is not given back once more. */
static inline int64_t gs_excess(int card)
{
    uint64_t sample = __atomic_load_n(&gs_samples[card], __ATOMIC_RELAXED);
    int64_t excess = (int32_t)(sample >> 32);
    if (GS_LIKELY(excess >= 0))
        return excess;
    uint64_t released = __atomic_load_n(&gs.region->cards[card].released_granules, __ATOMIC_ACQUIRE);
    excess += (int64_t)(uint32_t)(released - sample);
    return excess < 0 ? excess : 0;
}

/* Granules that may be charged on the card altogether, so that the driver's figure keeps to the promise. */
static inline uint64_t gs_chargeable(int card)
{
    int64_t room = (int64_t)(gs.card[card].memory_bytes / GS_GRANULE) - gs_excess(card);
    return room > 0 ? (uint64_t)room : 0;
}

void gs_sample_refresh(void);
int gs_sample_renew(int card, uint64_t wanted);

#endif
