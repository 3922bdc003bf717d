/* SPDX-License-Identifier: Apache-2.0 */
/* Slots: which process holds what, and whether it still lives.
 *
 * A living process holds an open-file-description lock on its slot's byte, kept by a mapping that
 * fork does not copy: the kernel drops it when the address space ends, whatever killed it, and
 * nothing the program closes can drop it sooner. Errors are 0 or -errno.
 */
#ifndef GS_SLOT_H
#define GS_SLOT_H

#include "gpushare_abi.h"

int gs_slot_take(struct gs_region *region, const char *path, uint32_t *slot);
uint64_t gs_reap(struct gs_region *region, const char *path, int mine, uint32_t *slots);
uint64_t gs_imports_of(const struct gs_region *region, uint32_t card, uint32_t but);
int gs_region_check(const struct gs_region *region, int64_t file_bytes);
struct gs_region *gs_region_map(const char *path);

#endif
