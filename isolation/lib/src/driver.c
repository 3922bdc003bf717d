/* SPDX-License-Identifier: Apache-2.0 */
#include "driver.h"

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include "elf.h"
#include "sys.h"

#define NAME "libcuda.so.1"

typedef void *(*dlopen_type)(const char *, int);

static const char *const folders[] = {
    "/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/lib64", "/usr/lib",
    "/usr/local/nvidia/lib64", "/usr/local/nvidia/lib", "/usr/local/cuda/compat", "/usr/lib/wsl/lib",
    "/usr/lib/aarch64-linux-gnu/tegra", "/usr/lib/aarch64-linux-gnu/nvidia",
};

static int identity(const char *path, uint64_t out[2])
{
    struct stat about;
    int fd = gs_open(path, O_RDONLY);
    if (fd < 0)
        return fd;
    int rc = (int)gs_call(SYS_fstat, fd, (long)&about, 0, 0, 0, 0);
    gs_close(fd);
    out[0] = about.st_dev;
    out[1] = about.st_ino;
    return rc;
}

/* Load the driver from this file unless it is our own. 0 or -errno. */
static int load(const char *path)
{
    uint64_t its[2], ours[2];
    const char *us = gs_elf_our_path();
    dlopen_type open = (dlopen_type)gs_elf_libc("dlopen");
    if (!open || identity(path, its) < 0)
        return -ENOENT;
    if (us && identity(us, ours) == 0 && ours[0] == its[0] && ours[1] == its[1])
        return -ENOENT;
    return open(path, 1 /* RTLD_LAZY */) ? 0 : -ENOENT;
}

static int load_from(const char *folder, size_t length)
{
    char path[512], head[400];
    if (length == 0 || length >= sizeof head)
        return -ENOENT;
    for (size_t i = 0; i < length; i++)
        head[i] = folder[i];
    head[length] = 0;
    gs_join(path, sizeof path, head, "/", NAME);
    return load(path);
}

static int load_from_list(const char *list)
{
    while (list && *list) {
        size_t length = 0;
        while (list[length] && list[length] != ':')
            length++;
        if (load_from(list, length) == 0)
            return 0;
        list += length + (list[length] == ':');
    }
    return -ENOENT;
}

/* The cache of ldconfig, in the format since glibc 2.2: magic, count at 20, entries of 24 bytes at 48
 * {flags, key, value, ...}, strings counted from the start. May also come behind an older table. */
static int load_from_cache(void)
{
    static const char magic[] = "glibc-ld.so.cache1.1";
    int fd = gs_open("/etc/ld.so.cache", O_RDONLY), rc = -ENOENT;
    int64_t bytes = fd < 0 ? fd : gs_file_size(fd);
    const char *all = bytes > 64 ? gs_map((size_t)bytes, PROT_READ, MAP_PRIVATE, fd) : NULL;
    if (fd >= 0)
        gs_close(fd);
    for (int64_t at = 0; all && rc < 0 && at + 64 < bytes; at++) {
        if (!gs_starts(all + at, magic))
            continue;
        const char *table = all + at;
        uint32_t count = *(const uint32_t *)(table + 20);
        for (uint32_t i = 0; rc < 0 && i < count && at + 48 + 24 * (int64_t)(i + 1) < bytes; i++) {
            const uint32_t *entry = (const uint32_t *)(table + 48 + 24 * (size_t)i);
            if (entry[1] < bytes - at && entry[2] < bytes - at && gs_same(table + entry[1], NAME))
                rc = load(table + entry[2]);
        }
        break;
    }
    if (all)
        gs_unmap((void *)all, (size_t)bytes);
    return rc;
}

/* Load the real driver, once. 0, or -ENOENT where there is none. */
int gs_driver_load(void)
{
    static int32_t state; /* 0 not tried, 1 loaded, 2 absent, 3 being tried */
    int32_t untried = 0;
    if (!__atomic_compare_exchange_n(&state, &untried, 3, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
        return untried == 1 ? 0 : -ENOENT; /* the driver itself asks while it loads: not yet */
    }
    int rc = load_from_list(getenv("LD_LIBRARY_PATH"));
    if (rc < 0)
        rc = load_from_cache();
    for (size_t i = 0; rc < 0 && i < sizeof folders / sizeof *folders; i++)
        rc = load_from(folders[i], gs_length(folders[i]));
    __atomic_store_n(&state, rc == 0 ? 1 : 2, __ATOMIC_RELEASE);
    return rc;
}
