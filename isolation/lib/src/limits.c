/* SPDX-License-Identifier: Apache-2.0 */
#include "limits.h"

#include <errno.h>

#include "sys.h"

/* 0 where a private copy of `bytes` bytes is a whole, current, sane limits file; -EAGAIN where it is
 * being rewritten or torn; -EPROTO for a foreign major; -EINVAL for anything else. */
int gs_limits_check(const struct gs_limits *limits, long bytes)
{
    if (bytes < (long)sizeof *limits || limits->magic != GS_LIMITS_MAGIC)
        return -EINVAL;
    if (limits->major != GS_ABI_MAJOR)
        return -EPROTO;
    if (limits->bytes != sizeof *limits || limits->card_offset != offsetof(struct gs_limits, cards) ||
        limits->card_stride != sizeof(struct gs_limit_card))
        return -EINVAL;
    const size_t head = offsetof(struct gs_limits, generation);
    if (limits->sequence & 1 || limits->crc != gs_crc32(&limits->generation, sizeof *limits - head))
        return -EAGAIN;
    if (limits->card_count > GS_CARDS)
        return -EINVAL;
    for (uint32_t i = 0; i < limits->card_count; i++)
        if (limits->cards[i].core_ppm > 1000000 || limits->cards[i].policy > GS_POLICY_NONE ||
            limits->cards[i].ceiling_ppm > 1000000)
            return -EINVAL;
    return 0;
}

/* Likewise for the feed. */
int gs_feed_check(const struct gs_feed *feed, long bytes)
{
    if (bytes < (long)sizeof *feed || feed->magic != GS_FEED_MAGIC)
        return -EINVAL;
    if (feed->major != GS_ABI_MAJOR)
        return -EPROTO;
    if (feed->bytes != sizeof *feed || feed->card_offset != offsetof(struct gs_feed, cards) ||
        feed->card_stride != sizeof(struct gs_feed_card) || feed->card_count > GS_CARDS)
        return -EINVAL;
    const size_t head = offsetof(struct gs_feed, written_ns);
    if (feed->sequence & 1 || feed->crc != gs_crc32(&feed->written_ns, sizeof *feed - head))
        return -EAGAIN;
    return 0;
}

/* Read and check; a rewrite under way is waited for, so many milliseconds at most. On failure `into` is garbage. */
int gs_limits_read(const char *path, struct gs_limits *into, int milliseconds)
{
    int rc = -EAGAIN;
    for (int tries = 0; rc == -EAGAIN && tries < milliseconds; tries++) {
        if (tries)
            gs_sleep_ns(1000000);
        long got = gs_read_file(path, into, sizeof *into);
        rc = got < 0 ? (int)got : gs_limits_check(into, got);
    }
    return rc;
}

/* Likewise for the feed; not waited for: the next look is soon. */
int gs_feed_read(const char *path, struct gs_feed *into)
{
    long got = gs_read_file(path, into, sizeof *into);
    return got < 0 ? (int)got : gs_feed_check(into, got);
}
