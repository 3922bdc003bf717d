/* SPDX-License-Identifier: Apache-2.0 */
/* Memory pools of the simulated driver, for stream-ordered allocations and graphs. */
#ifndef SIMGPU_POOL_H
#define SIMGPU_POOL_H

#include "sim.h"

struct sim_device;

struct sim_pool {
    uint32_t tag;
    int device;
    int counted; /* device memory: charged to the card */
    int type;    /* 1 pinned, 2 managed: that is on the card only as far as it was brought there */
    int imported;
    struct cu_location location;
    enum hw_kind kind;
    uint64_t reserved_bytes, used_bytes, reserved_high, used_high, keep_bytes, max_bytes;
    uint64_t flags[16];
    int is_default, handle_types;
};

CUresult sim_pool_take(struct sim_pool *pool, uint64_t bytes);
void sim_pool_give(struct sim_pool *pool, uint64_t bytes);
void sim_pool_trim(struct sim_pool *pool, uint64_t keep);
void sim_pools_settle(struct sim_device *device);
struct sim_pool *sim_pool_check(void *handle);
void sim_pool_init(struct sim_pool *pool, int device, enum hw_kind kind);
CUresult sim_pool_new(struct sim_pool **pool, const struct sim_pool *as, uint64_t max_bytes, int handle_types);
CUresult sim_pool_place(struct sim_pool *pool, const struct cu_location *location, int type);

#endif
