/* SPDX-License-Identifier: Apache-2.0 */
/* Control groups (version 2) as the simulated kernel driver knows them: by the number of their directory.
 *
 * That number is the kernel's id of the group. A process in a cgroup namespace of its own does not see its group's
 * name, but it sees its group's directory where the file system is mounted: as the root of that mount.
 * Return convention: 0 or a count on success, a negative errno otherwise. */
#define _GNU_SOURCE
#include "hw.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

/* Open the directory of a group by its full path; -ENOTSUP where it is not one of cgroup version 2. */
int hw_cgroup_open(const char *path, uint64_t *id)
{
    if (*path != '/')
        return -EINVAL;
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    struct statfs system;
    struct stat about;
    int error = fstatfs(fd, &system) || fstat(fd, &about) ? -errno : 0;
    if (!error && system.f_type != CGROUP2_SUPER_MAGIC)
        error = -ENOTSUP;
    if (error) {
        close(fd);
        return error;
    }
    *id = about.st_ino;
    return fd;
}

/* 1 if a limit's group is there no more: the kernel takes its limit away with it. */
int hw_cgroup_gone(const char *path, uint64_t id)
{
    struct stat about;
    return stat(path, &about) ? errno == ENOENT : about.st_ino != id;
}

/* Where the file system of version 2 is mounted with `own` in it, and which of its directories is the mount's root: the
 * last such mount, which is on top. One from before a new namespace has a root above it and does not count. */
static int find_mount(const char *own, char *at, char *root)
{
    FILE *file = fopen("/proc/self/mountinfo", "re");
    if (!file)
        return -errno;
    char *line = NULL, one[HW_PATH], place[HW_PATH];
    size_t size = 0;
    int found = -ENOENT;
    while (getline(&line, &size, file) > 0) {
        if (!strstr(line, " - cgroup2 ") || sscanf(line, "%*s %*s %*s %191s %191s", one, place) != 2)
            continue;
        size_t length = strcmp(one, "/") ? strlen(one) : 0;
        if (strncmp(one, "/..", 3) == 0 || strncmp(own, one, length))
            continue;
        strcpy(root, one);
        strcpy(at, place);
        found = 0;
    }
    free(line);
    fclose(file);
    return found;
}

/* This process's group and those above it, as far as they can be seen, the nearest first; 0 behind the last. */
void hw_cgroup_own(uint64_t ids[HW_DEPTH], const char *own)
{
    char at[HW_PATH], root[HW_PATH], path[2 * HW_PATH + 2];
    memset(ids, 0, HW_DEPTH * sizeof *ids);
    if (find_mount(own, at, root))
        return;
    own += strcmp(root, "/") ? strlen(root) : 0;
    int length = strcmp(own, "/") ? (int)strlen(own) : 0;
    for (int i = 0; i < HW_DEPTH; i++) {
        struct stat about;
        snprintf(path, sizeof path, "%s%.*s", at, length, own);
        if (stat(path, &about))
            return;
        ids[i] = about.st_ino;
        if (!length)
            return;
        while (length && own[--length] != '/')
            continue;
    }
}
