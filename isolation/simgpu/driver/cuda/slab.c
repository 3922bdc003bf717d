/* SPDX-License-Identifier: Apache-2.0 */
/* Small allocations: several share one granule of 2 MiB, in units of 512 bytes, first fit.
 *
 * The card's books see the whole granule. The process's lock is held.
 * Return convention: CUresult.
 */
#include "context.h"
#include "device.h"
#include "memory.h"
#include "sim.h"

#include <stdlib.h>
#include <string.h>

enum { UNIT = 512, UNITS = SIM_BLOCK / UNIT, WORDS = UNITS / 64 };

struct sim_slab {
    struct sim_range *range;
    unsigned free_units, largest; /* largest: no run is longer */
    uint64_t used[WORDS];
    uint32_t bytes[UNITS]; /* at the first unit of an allocation: what was asked for */
    struct sim_slab *next, **link; /* in the context's list while it has room */
};

/* First unit of a run of `need` free ones, or -1. */
static int find_run(const struct sim_slab *slab, unsigned need)
{
    unsigned run = 0;
    for (unsigned unit = 0; unit < UNITS;) {
        uint64_t word = slab->used[unit / 64];
        if (unit % 64 == 0 && (word == 0 || word == UINT64_MAX)) {
            run = word ? 0 : run + 64;
            unit += 64;
        } else {
            run = word >> unit % 64 & 1 ? 0 : run + 1;
            unit++;
        }
        if (run >= need)
            return (int)(unit - run);
    }
    return -1;
}

static void set_run(struct sim_slab *slab, unsigned from, unsigned count, int used)
{
    for (unsigned unit = from; unit < from + count; unit++) {
        uint64_t bit = 1ull << unit % 64;
        slab->used[unit / 64] = used ? slab->used[unit / 64] | bit : slab->used[unit / 64] & ~bit;
    }
    slab->free_units += used ? -count : count;
}

static void enlist(struct sim_slab *slab)
{
    struct sim_slab **head = &slab->range->context->slabs;
    slab->next = *head;
    slab->link = head;
    if (slab->next)
        slab->next->link = &slab->next;
    *head = slab;
}

static void delist(struct sim_slab *slab)
{
    if (!slab->link)
        return;
    *slab->link = slab->next;
    if (slab->next)
        slab->next->link = slab->link;
    slab->link = NULL;
}

/* A new granule for small allocations. */
static CUresult grow(struct sim_context *context)
{
    struct sim_device *device = sim_device_of(context);
    uint64_t bytes = sim_round(SIM_BLOCK, sim_params()->granule_bytes);
    TRY(sim_charge(device, HW_DATA, bytes));
    struct sim_range *range = sim_range_new(SIM_RANGE_SLAB, context, SIM_BLOCK);
    if (!range) {
        sim_refund(device, HW_DATA, bytes);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    struct sim_slab *slab = sim_new(sizeof *slab);
    slab->range = range;
    slab->free_units = slab->largest = UNITS;
    range->slab = slab;
    range->charged_bytes = bytes;
    range->hw_kind = HW_DATA;
    enlist(slab);
    return CUDA_SUCCESS;
}

/* Place `bytes` (at most half a granule) in a granule of the context. */
CUresult sim_slab_take(struct sim_context *context, uint64_t bytes, CUdeviceptr *address)
{
    unsigned need = (unsigned)((bytes + UNIT - 1) / UNIT);
    for (;;) {
        for (struct sim_slab *slab = context->slabs, *next; slab; slab = next) {
            next = slab->next;
            int at = slab->largest >= need ? find_run(slab, need) : -1;
            if (at < 0) {
                if (slab->largest >= need)
                    slab->largest = need - 1;
                if (!slab->largest)
                    delist(slab);
                continue;
            }
            set_run(slab, (unsigned)at, need, 1);
            slab->bytes[at] = (uint32_t)bytes;
            *address = slab->range->base + (uint64_t)at * UNIT;
            return CUDA_SUCCESS;
        }
        TRY(grow(context));
    }
}

/* Base and size of the allocation that an address lies in; 0 if it lies in none. */
int sim_slab_find(const struct sim_range *range, CUdeviceptr address, CUdeviceptr *from, uint64_t *bytes)
{
    const struct sim_slab *slab = range->slab;
    unsigned unit = (unsigned)((address - range->base) / UNIT);
    if (!(slab->used[unit / 64] >> unit % 64 & 1))
        return 0;
    while (!slab->bytes[unit])
        unit--;
    *from = range->base + (uint64_t)unit * UNIT;
    *bytes = slab->bytes[unit];
    return address < *from + *bytes;
}

/* Free the allocation at `address`; an empty granule goes back to the card. */
CUresult sim_slab_give(struct sim_range *range, CUdeviceptr address)
{
    struct sim_slab *slab = range->slab;
    unsigned unit = (unsigned)((address - range->base) / UNIT);
    if (address % UNIT || !slab->bytes[unit])
        return CUDA_ERROR_INVALID_VALUE;
    unsigned count = (slab->bytes[unit] + UNIT - 1) / UNIT;
    slab->bytes[unit] = 0;
    set_run(slab, unit, count, 0);
    slab->largest = UNITS;
    if (!slab->link)
        enlist(slab);
    return slab->free_units == UNITS ? sim_free(range) : CUDA_SUCCESS;
}

/* The granule goes: forget what was in it. */
void sim_slab_end(struct sim_range *range)
{
    delist(range->slab);
    free(range->slab);
    range->slab = NULL;
}
