/* SPDX-License-Identifier: Apache-2.0 */
/* The promise as the host wrote it: read whole into a private copy, believed only if it is right.
 * Errors are 0 or -errno.
 */
#ifndef GS_LIMITS_H
#define GS_LIMITS_H

#include "gpushare_abi.h"

int gs_limits_check(const struct gs_limits *limits, long bytes);
int gs_limits_read(const char *path, struct gs_limits *into, int milliseconds);
int gs_feed_check(const struct gs_feed *feed, long bytes);
int gs_feed_read(const char *path, struct gs_feed *into);

#endif
