/* SPDX-License-Identifier: Apache-2.0 */
/* Judges the ledger of a container from outside: the region itself, and the simulated hardware's own
 * records, by way of _hardware.so. Must run in a process that has no part in either.
 */
#ifndef GS_JUDGE_H
#define GS_JUDGE_H

#include <sys/types.h>

#include "families.h"
#include "../src/ledger.h"

/* What a process shares with those that it forks. */
struct shared {
    struct cu_ipc_handle handle; /* of memory that the holder exports */
    uint32_t ready;
    uint32_t progress[64]; /* calls of each child */
};

extern struct gs_region *judge_region;
extern struct shared *judge_shared;

void judge_begin(const char *hardware);
int64_t judge_difference(void);
uint64_t judge_ledger(void);
uint64_t judge_truth(void);
void judge_reap(void);
int judge_settles(uint64_t ledger, uint64_t truth);
void judge_join(CUstream *stream);
pid_t judge_holder(void);

#endif
