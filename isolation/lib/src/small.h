/* SPDX-License-Identifier: Apache-2.0 */
/* Small allocations: the driver carves them out of blocks of 2 MiB, so what they cost the card is
 * whole blocks. An address tells its block; a block is charged from its first allocation to its last.
 */
#ifndef GS_SMALL_H
#define GS_SMALL_H

#include "cuda_subset.h"

#define GS_BLOCK (2ULL << 20)
#define GS_SMALL (GS_BLOCK / 2) /* larger ones have blocks of their own */

CUresult gs_small_begin(int card, uint64_t bytes, const char *api);
void gs_small_end(int card, int made, uint64_t at);
void gs_small_freed(int card, uint64_t at);

#endif
