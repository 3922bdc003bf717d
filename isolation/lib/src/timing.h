/* SPDX-License-Identifier: Apache-2.0 */
/* Launches between two events: what they took, learnt and put right once they have ended. */
#ifndef GS_TIMING_H
#define GS_TIMING_H

#include <stdint.h>

struct gs_card;
struct gs_launch;
struct gs_meter;

void gs_timing_start(struct gs_meter *meter, struct gs_launch *launch);
void gs_timing_stop(struct gs_meter *meter, const struct gs_launch *launch, int launched);
void gs_timing_poll(struct gs_meter *meter, int card);
int gs_timing_long(const struct gs_meter *meter, uint64_t now);
int64_t gs_timing_queued(const struct gs_meter *meter, uint64_t now);
int gs_timing_idle(struct gs_meter *meter, uint64_t now);
void gs_charge_time(struct gs_meter *meter, struct gs_card *shared, int64_t charged, int64_t event);

#endif
