/* SPDX-License-Identifier: Apache-2.0 */
/* What stream-ordered memory is charged: what is charged is what a pool keeps reserved, not what is
 * handed out. The driver's own figure rules; a guess stands in for it while a call is under way.
 */
#ifndef GS_POOL_H
#define GS_POOL_H

#include "cuda_subset.h"
#include "table.h"

struct gs_pool {
    uint64_t number; /* ours, never used twice; 0: this place is free */
    CUpool pool;     /* NULL: the graph memory of `device` */
    CUdevice device;
    int32_t card;
    uint32_t destroyed; /* it lives on until `live` is 0 */
    uint64_t charged;   /* what it had reserved when it was looked at last */
    uint64_t guessed;   /* charged for calls under way, on top */
    uint64_t asked;     /* bytes that those calls want */
    uint64_t live;      /* bytes handed out */
};

/* One call that may make a pool grow, between gs_pool_begin() and gs_pool_end(). */
struct gs_pool_call {
    struct gs_pool *pool;
    uint64_t number, bytes, asked;
    int card; /* of the pool at that time: its place may be another pool's by now */
    uint64_t underway; /* charged for this call */
    int edge; /* descriptor that holds the card's edge, or -1 */
};

struct gs_pool *gs_pool_of(CUpool pool, CUdevice device, int card);
CUresult gs_pool_begin(struct gs_pool *pool, uint64_t asked, struct gs_pool_call *guess, const char *api);
int gs_pool_fits(struct gs_pool_call *guess, uint64_t handed);
void gs_pool_end(struct gs_pool_call *guess);
void gs_pool_freed(uint64_t number, uint64_t bytes);
uint64_t gs_pool_destroying(CUpool pool);
void gs_pool_destroyed(uint64_t number, int gone);

void gs_pools_refresh(void);
int gs_pool_take_entry(uint64_t at, struct gs_entry *entry);
int gs_graphs_over(void);
CUresult gs_graphs_trim(CUdevice device);
struct gs_pool *gs_graph_pool(CUgraphExec exec, uint64_t *bytes);

#endif
