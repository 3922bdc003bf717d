/* SPDX-License-Identifier: Apache-2.0 */
#include "ring.h"

#include "sys.h"

static void put(uint64_t *to, uint64_t value) { __atomic_store_n(to, value, __ATOMIC_RELAXED); }

/* Append `record`; its sequence is filled in, and its time and process where they are 0. Wait-free. */
void gs_ring_write(struct gs_region *region, const struct gs_record *record)
{
    uint64_t index = __atomic_fetch_add(&region->ring_head, 1, __ATOMIC_SEQ_CST);
    struct gs_record *at = &region->ring[index % GS_RING];
    uint32_t pid = record->pid ? record->pid : gs_pid();
    __atomic_store_n(&at->sequence, 0, __ATOMIC_SEQ_CST);
    put(&at->mono_ns, record->mono_ns ? record->mono_ns : gs_now_ns());
    __atomic_store_n(&at->kind, record->kind, __ATOMIC_RELAXED);
    __atomic_store_n(&at->card, record->card, __ATOMIC_RELAXED);
    __atomic_store_n(&at->pid, pid, __ATOMIC_RELAXED);
    put(&at->requested, record->requested);
    put(&at->used, record->used);
    put(&at->limit, record->limit);
    __atomic_store_n(&at->api, record->api, __ATOMIC_RELAXED);
    __atomic_store_n(&at->sequence, index + 1, __ATOMIC_SEQ_CST);
}
