/* SPDX-License-Identifier: Apache-2.0 */
/* The breach ring: the last GS_RING things that went against a promise. Any process writes, the
 * host reads; a record that is being overwritten shows sequence 0, a lap shows in ring_head.
 */
#ifndef GS_RING_H
#define GS_RING_H

#include "gpushare_abi.h"

void gs_ring_write(struct gs_region *region, const struct gs_record *record);

#endif
