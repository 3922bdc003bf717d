/* SPDX-License-Identifier: Apache-2.0 */
/* Device addresses: one great reservation of host addresses, so that copies really copy.
 *
 * Carved in blocks of 2 MiB; freed ranges are handed out again at once, newest first, as drivers do.
 * Pages cost nothing until something is copied into them. The process's lock is held.
 */
#define _GNU_SOURCE
#include "context.h"
#include "memory.h"
#include "sim.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { CLASSES = 40 };

static uint64_t base, blocks, used; /* blocks: of the arena; used: ever handed out */
static struct sim_range **owner;    /* per block: the range that it is part of */
static struct sim_range *free_ranges[CLASSES];
static uint64_t range_ids;

/* Reserve the arena: 1 TiB, or what the process may have. */
static int reserve(void)
{
    for (uint64_t size = 1ull << 40; size >= 1ull << 34 && !base; size >>= 1) {
        void *at = mmap(NULL, size + SIM_BLOCK, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (at == MAP_FAILED)
            continue;
        base = sim_round((uint64_t)at, SIM_BLOCK);
        blocks = size / SIM_BLOCK;
        madvise(at, size + SIM_BLOCK, MADV_DONTDUMP);
        madvise(at, size + SIM_BLOCK, MADV_NOHUGEPAGE);
    }
    if (!base)
        return 0;
    owner = mmap(NULL, blocks * sizeof *owner, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return owner != MAP_FAILED;
}

/* Blocks are handed out in powers of two: addresses are plenty, and freeing is O(1). */
static int class_of(uint64_t count)
{
    return count <= 1 ? 0 : 64 - __builtin_clzll(count - 1);
}

/* Addresses for `bytes`, charged to nobody; NULL where there are none left. */
struct sim_range *sim_range_new(enum sim_range_kind kind, struct sim_context *context, uint64_t bytes)
{
    if (!base && !reserve())
        return NULL;
    if (!bytes || bytes > blocks * SIM_BLOCK)
        return NULL;
    uint64_t need = (bytes + SIM_BLOCK - 1) / SIM_BLOCK;
    int class = class_of(need);
    struct sim_range *range = free_ranges[class];
    uint64_t at;
    if (range) {
        free_ranges[class] = range->next;
        at = range->base;
    } else {
        if (used + (1ull << class) > blocks)
            return NULL;
        range = sim_new(sizeof *range);
        at = base + used * SIM_BLOCK;
        used += 1ull << class;
    }
    *range = (struct sim_range){.kind = kind, .device = context ? context->device : 0, .context = context,
                                .base = at, .bytes = bytes, .blocks = need, .id = ++range_ids};
    for (uint64_t i = 0; i < need; i++)
        owner[(at - base) / SIM_BLOCK + i] = range;
    return range;
}

/* Give addresses back; what was written there is forgotten.  pre: nothing is charged any more. */
void sim_range_end(struct sim_range *range)
{
    if (range->touched)
        madvise((void *)range->base, range->blocks * SIM_BLOCK, MADV_DONTNEED);
    for (uint64_t i = 0; i < range->blocks; i++)
        owner[(range->base - base) / SIM_BLOCK + i] = NULL;
    free(range->map);
    range->map = NULL;
    int class = class_of(range->blocks);
    range->next = free_ranges[class];
    free_ranges[class] = range;
}

int sim_in_arena(CUdeviceptr address)
{
    return base && address >= base && address < base + blocks * SIM_BLOCK;
}

/* The range that an address lies in, or NULL. */
struct sim_range *sim_range_at(CUdeviceptr address)
{
    if (!sim_in_arena(address))
        return NULL;
    struct sim_range *range = owner[(address - base) / SIM_BLOCK];
    int inside = range && (range->kind == SIM_RANGE_SLAB || address < range->base + range->bytes);
    return inside ? range : NULL;
}

/* Visit every range once; the visitor may end the one it is shown. */
void sim_each_range(void (*visit)(struct sim_range *, void *), void *data)
{
    for (uint64_t i = 0; i < used;) {
        struct sim_range *range = owner[i];
        uint64_t step = range ? range->blocks : 1;
        if (range)
            visit(range, data);
        i += step;
    }
}
