/* SPDX-License-Identifier: Apache-2.0 */
#include "hook.h"

#include "module.h"
#include "small.h"

uint32_t gs_kernels;
uint64_t gs_ready[GS_READY];

/* The driver said `rc` to an allocation that is charged already: give it back, or remember it until
 * it is freed. Without memory to remember it stays charged until the process ends. */
CUresult gs_finish_charge(CUresult rc, int card, uint64_t bytes, uint64_t key, enum gs_kind kind)
{
    if (rc != CUDA_SUCCESS) {
        gs_charge_undo(card, bytes);
        return rc;
    }
    if (gs_kind_estimated(kind))
        gs_estimate_done(card, bytes);
    else
        gs_charge_done(card, bytes);
    struct gs_entry entry = {.key = key, .bytes = bytes, .card = (int16_t)card, .kind = (uint16_t)kind,
                             .extra = gs_context_here()};
    (void)gs_table_put(&entry);
    return rc;
}

uint64_t gs_context_here(void)
{
    CUcontext context = NULL;
    return GS_REAL(cuCtxGetCurrent)(&context) == CUDA_SUCCESS ? (uint64_t)context : 0;
}

/* A library is loaded somewhere no more: each function's next launch looks again. */
void gs_kernels_forget(void)
{
    for (int i = 0; i < GS_READY; i++)
        __atomic_store_n(&gs_ready[i], 0, __ATOMIC_RELAXED);
}

/* Give back what an entry is charged. */
void gs_release_entry(const struct gs_entry *entry)
{
    uint32_t bits = entry->kind == GS_KIND_MEMORY ? entry->count : 0;
    if (entry->kind == GS_KIND_LOADED)
        gs_kernels_forget();
    if (bits & GS_ENTRY_EXPORTED)
        gs_share(entry->card, -(int64_t)entry->bytes, 0);
    if (bits & GS_ENTRY_MANAGED)
        gs_managed_more(entry->card, -(int64_t)entry->bytes);
    if (gs_kind_estimated(entry->kind))
        gs_estimate_uncharge(entry->card, entry->bytes);
    else if (bits & GS_ENTRY_SMALL)
        gs_small_freed(entry->card, entry->key);
    else
        gs_uncharge(entry->card, entry->bytes);
}

/* A forked child was given no kernel. */
static void forget_all(void)
{
    if (gs_kernels) /* pages that were never used stay untouched */
        gs_kernels_forget();
    gs_kernels = 0;
}

GS_FORGET_AFTER_FORK(forget_all);
