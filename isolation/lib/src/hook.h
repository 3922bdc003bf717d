/* SPDX-License-Identifier: Apache-2.0 */
/* What the wrappers share. Each has the name and the signature of the function it stands for, is
 * found by dlsym, cuGetProcAddress or the dynamic linker, and returns what that one would.
 */
#ifndef GS_HOOK_H
#define GS_HOOK_H

#include "charge.h"
#include "symbols.h"
#include "table.h"

CUresult gs_finish_charge(CUresult rc, int card, uint64_t bytes, uint64_t key, enum gs_kind kind);
void gs_release_entry(const struct gs_entry *entry);
void gs_kernels_forget(void);
uint64_t gs_context_here(void);

#endif
