/* SPDX-License-Identifier: Apache-2.0 */
/* Events, of one process and shared between processes. */
#ifndef SIMGPU_EVENT_H
#define SIMGPU_EVENT_H

#include "sim.h"

struct sim_context;
struct sim_device;
struct sim_graph;
struct sim_node;

struct sim_event {
    uint32_t tag;
    struct sim_context *context;
    unsigned flags;
    int state; /* 0 never recorded, 1 pending, 2 done */
    uint64_t seq, time_ns;
    struct sim_graph *capture; /* recorded while capturing */
    struct sim_node **tips;
    size_t tip_count;
    struct sim_shared_event *shared; /* between processes: who recorded it last, and as what */
    uint64_t id;                     /* of that: its descriptor */
};

void sim_forget_event(struct sim_event *event);

void sim_event_tell(struct sim_event *event, struct sim_device *device);
int sim_event_foreign(const struct sim_event *event, const struct sim_device *device);
int sim_event_happened(const struct sim_event *event);

#endif
