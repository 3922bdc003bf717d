/* SPDX-License-Identifier: Apache-2.0 */
/* What the host calls when it loads this library itself: `gpushare lib`, `gpushare run`, the agent. */
#include "core.h"
#include "slot.h"
#include "symbols.h"
#include "sys.h"

/* Version of the library: that of pyproject.toml, defined by build.py. */
GS_API const char *gpushare_version(void) { return GS_VERSION; }

/* Sizes as this build lays them out, in the order of isolation/lib/native.py; 0 past the end. */
GS_API uint32_t gpushare_layout(uint32_t index)
{
    static const uint32_t sizes[] = {
        GS_ABI_MAJOR,
        GS_ABI_MINOR,
        sizeof(struct gs_limits),
        sizeof(struct gs_limit_card),
        sizeof(struct gs_feed),
        sizeof(struct gs_feed_card),
        sizeof(struct gs_region),
        sizeof(struct gs_card),
        sizeof(struct gs_slot),
        sizeof(struct gs_record),
        offsetof(struct gs_region, cards),
        offsetof(struct gs_region, slots),
        offsetof(struct gs_region, ring),
    };
    return index < sizeof sizes / sizeof *sizes ? sizes[index] : 0;
}

/* Give back what dead processes hold in this region: the bytes, or -1 where it is no region of ours.
 * Maps the file: only for regions whose writers the caller trusts not to truncate it. */
GS_API int64_t gpushare_reap(const char *path, uint32_t *slots)
{
    struct gs_region *region = gs_region_map(path);
    if (!region)
        return -1;
    uint64_t bytes = gs_reap(region, path, -1, slots);
    gs_unmap(region, sizeof *region);
    return (int64_t)bytes;
}
