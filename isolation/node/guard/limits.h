// SPDX-License-Identifier: Apache-2.0
/*
 * Memory limits by the kernel driver: which control group a container has, and the node agent that sets them.
 *
 * The agent holds NVML open; it listens on a socket of root. A question is `id TAB group TAB uuid=bytes,... LF`, the
 * answer `ok LF` or why not. No answer within four seconds is a no.
 */
#ifndef GS_GUARD_LIMITS_H
#define GS_GUARD_LIMITS_H

#include <stddef.h>

/* The container's group of cgroup version 2 by /proc/<pid>/cgroup: the part of the path that ends with the name that
 * has the id in it. 0: there is none. `lines` is changed. */
int find_cgroup(char *lines, const char *id, char *group, size_t room);

/* 1: the limits stand; 0: `answer` says why not. */
int ask_limits(const char *path, const char *id, const char *group, const char *parts, char *answer, size_t room);

#endif
