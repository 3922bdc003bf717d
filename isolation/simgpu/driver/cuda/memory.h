/* SPDX-License-Identifier: Apache-2.0 */
/* Addresses, the ranges behind them, and copies between them. */
#ifndef SIMGPU_MEMORY_H
#define SIMGPU_MEMORY_H

#include "context.h"
#include "sim.h"

struct sim_slab;

#define SIM_BLOCK (2ull << 20)

enum sim_range_kind {
    SIM_RANGE_DATA,
    SIM_RANGE_SLAB,
    SIM_RANGE_POOL,
    SIM_RANGE_GRAPH,
    SIM_RANGE_MANAGED,
    SIM_RANGE_IMPORT,
    SIM_RANGE_RESERVED, /* cuMemAddressReserve */
    SIM_RANGE_SYMBOL,
    SIM_RANGE_HOST,
};

struct sim_range {
    enum sim_range_kind kind;
    int device;
    struct sim_context *context;
    CUdeviceptr base;
    uint64_t bytes, blocks; /* as asked; of address space */
    uint64_t charged_bytes;
    enum hw_kind hw_kind;
    struct sim_pool *pool;
    struct sim_slab *slab;
    uint64_t object, generation; /* shared: entry + 1 */
    uint64_t resident_bytes;     /* managed memory on the card; counted apart from `charged_bytes` */
    uint64_t id;
    void **map; /* reserved: the physical handle of each granule */
    int touched;
    struct sim_range *next;
};

struct sim_range *sim_range_new(enum sim_range_kind kind, struct sim_context *context, uint64_t bytes);
void sim_range_end(struct sim_range *range);
struct sim_range *sim_range_at(CUdeviceptr address);
void sim_each_range(void (*visit)(struct sim_range *, void *), void *data);
int sim_in_arena(CUdeviceptr address);

CUresult sim_slab_take(struct sim_context *context, uint64_t bytes, CUdeviceptr *address);
CUresult sim_slab_give(struct sim_range *range, CUdeviceptr address);
int sim_slab_find(const struct sim_range *range, CUdeviceptr address, CUdeviceptr *base, uint64_t *bytes);
void sim_slab_end(struct sim_range *range);

CUresult sim_extent(CUdeviceptr address, CUdeviceptr *base, uint64_t *bytes, struct sim_range **range);
CUresult sim_free(struct sim_range *range);

CUresult sim_unshare(struct sim_device *device, struct sim_range *range);
CUresult sim_vmm_end(struct sim_range *range);

CUresult sim_move(CUdeviceptr to, CUdeviceptr from, uint64_t bytes);
CUresult sim_fill(CUdeviceptr to, uint64_t pitch, unsigned value, unsigned element, uint64_t width, uint64_t height);
uint64_t sim_copy_ns(const struct sim_device *device, CUdeviceptr to, CUdeviceptr from, uint64_t bytes);
CUresult sim_move3(const struct cu_copy3 *copy, uint64_t *ns);

#endif
