/* SPDX-License-Identifier: Apache-2.0 */
/* The hardware file: mapping it, joining it as a process, its locks.
 * Return convention: 0 or a descriptor on success, a negative errno otherwise. */
#define _GNU_SOURCE
#include "hw.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { STANDING_NAP_NS = 200000 }; /* of the machine: how often a clock that stands is looked at */

/* Nanoseconds of the machine, the same for each of its processes. */
uint64_t hw_monotonic(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec;
}

static uint64_t clock_of(const struct hw *hw)
{
    return __atomic_load_n(&hw->file->clock, __ATOMIC_ACQUIRE);
}

/* Does the device's clock stand? */
int hw_stands(const struct hw *hw)
{
    return (clock_of(hw) & HW_STANDS) != 0;
}

/* The device clock: the machine's, unless somebody stopped it. Where that happens while we look, we look again:
 * who was late with the one word would be late with the other. */
uint64_t hw_now(const struct hw *hw)
{
    for (uint64_t clock = clock_of(hw), before;; clock = before) {
        if (clock & HW_STANDS)
            return clock >> 1;
        uint64_t now = hw_monotonic() - (uint64_t)((int64_t)clock >> 1);
        before = clock_of(hw);
        if (before == clock)
            return now;
    }
}

/* Burn `ns` of CPU time, as a driver call would: of the machine, whatever the device's clock does. */
void hw_spin(uint64_t ns)
{
    if (!ns)
        return;
    uint64_t end = hw_monotonic() + ns;
    while (hw_monotonic() < end)
        continue;
}

/* Sleep until this moment of the device clock as it goes now; a short while where it stands. Who waits looks again. */
void hw_rest(const struct hw *hw, uint64_t until)
{
    uint64_t clock = clock_of(hw);
    until = clock & HW_STANDS ? hw_monotonic() + STANDING_NAP_NS : until + (uint64_t)((int64_t)clock >> 1);
    struct timespec t = {(time_t)(until / 1000000000ull), (long)(until % 1000000000ull)};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL) == EINTR)
        continue;
}

/* Where the hardware file is: the environment, else `hardware` beside the library as it was
 * loaded, else the well-known place. `near` is an address inside the library. */
int hw_path(char *path, size_t size, const void *near)
{
    const char *set = getenv("GPUSHARE_SIMGPU");
    if (set && *set)
        return snprintf(path, size, "%s", set) < (int)size ? 0 : -ENAMETOOLONG;
    Dl_info info;
    if (dladdr(near, &info) && info.dli_fname) {
        const char *slash = strrchr(info.dli_fname, '/');
        int directory = slash ? (int)(slash - info.dli_fname) : 1;
        const char *base = slash ? info.dli_fname : ".";
        if (snprintf(path, size, "%.*s/hardware", directory, base) < (int)size && access(path, R_OK | W_OK) == 0)
            return 0;
    }
    return snprintf(path, size, "/dev/shm/gpushare-simgpu") < (int)size ? 0 : -ENAMETOOLONG;
}

/* Map the file at `path`; -EPROTO where it is none of ours. The descriptor is not kept. */
int hw_open(struct hw *hw, const char *path)
{
    memset(hw, 0, sizeof *hw);
    if (snprintf(hw->path, sizeof hw->path, "%s", path) >= (int)sizeof hw->path)
        return -ENAMETOOLONG;
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    struct stat st;
    struct hw_file head;
    int bad = fstat(fd, &st) || pread(fd, &head, sizeof head, 0) != (ssize_t)sizeof head;
    if (bad || head.magic != HW_MAGIC || head.version != HW_VERSION || head.bytes != (uint64_t)st.st_size) {
        close(fd);
        return -EPROTO;
    }
    void *map = mmap(NULL, head.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    int error = map == MAP_FAILED ? -errno : 0;
    close(fd);
    if (error)
        return error;
    hw->file = map;
    hw->device = st.st_dev;
    hw->inode = st.st_ino;
    return 0;
}

/* Undo hw_open; a process that joined stays joined. */
void hw_close(struct hw *hw)
{
    if (hw->file)
        munmap(hw->file, hw->file->bytes);
    hw->file = NULL;
}

/* Kernel start time of this process in clock ticks; 0 where /proc is not there. */
static uint64_t own_start_time(void)
{
    char text[1024];
    int fd = open("/proc/self/stat", O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return 0;
    ssize_t n = read(fd, text, sizeof text - 1);
    close(fd);
    if (n <= 0)
        return 0;
    text[n] = 0;
    char *at = strrchr(text, ')');
    for (int field = 2; at && field < 22; field++)
        at = strchr(at + 1, ' ');
    return at ? strtoull(at, NULL, 10) : 0;
}

/* Lock one byte of `fd` for its open file description; 0 if it is ours now. */
static int lock_byte(int fd, uint64_t at, short type)
{
    struct flock lock = {.l_type = type, .l_whence = SEEK_SET, .l_start = (off_t)at, .l_len = 1};
    return fcntl(fd, F_OFD_SETLK, &lock) ? -errno : 0;
}

/* 1 if another open file description holds the byte. */
static int byte_held(int fd, uint64_t at)
{
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = (off_t)at, .l_len = 1};
    return fcntl(fd, F_OFD_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
}

/* Take a process slot. Its lock belongs to an open file that only a mapping keeps: the kernel
 * drops it at death or exec, a fork does not inherit it, and closing descriptors does not lose it. */
int hw_join(struct hw *hw)
{
    int fd = open(hw->path, O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    uint64_t slot = 0;
    while (slot < HW_MAX_PROCESSES && lock_byte(fd, HW_LOCK_PROCESS + slot, F_WRLCK))
        slot++;
    if (slot == HW_MAX_PROCESSES) {
        close(fd);
        return -EUSERS;
    }
    void *anchor = mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 0);
    close(fd);
    if (anchor == MAP_FAILED)
        return -ENOMEM;
    madvise(anchor, 4096, MADV_DONTFORK);
    struct hw_process *process = &hw->file->process[slot];
    __atomic_store_n(&process->generation, process->generation + 1, __ATOMIC_RELEASE);
    process->pid = (uint64_t)getpid();
    process->start_time = own_start_time();
    hw->process = slot;
    hw->generation = process->generation;
    return 0;
}

/* A descriptor to probe locks with, or -1; the caller closes it. */
int hw_probe_open(const struct hw *hw)
{
    int fd = open(hw->path, O_RDONLY | O_CLOEXEC);
    struct stat st;
    if (fd >= 0 && (fstat(fd, &st) || st.st_dev != hw->device || st.st_ino != hw->inode)) {
        close(fd);
        return -1;
    }
    return fd;
}

/* 1 while the client's process lives; where the file cannot be probed nobody is called dead. */
int hw_process_lives(const struct hw *hw, int probe, const struct hw_client *client)
{
    const struct hw_process *process = &hw->file->process[client->process];
    if (__atomic_load_n(&process->generation, __ATOMIC_ACQUIRE) != client->generation)
        return 0;
    if (client->process == hw->process && client->generation == hw->generation)
        return 1;
    return probe < 0 || byte_held(probe, HW_LOCK_PROCESS + client->process);
}

/* 1 while a descriptor that was exported for the object is open somewhere. */
int hw_export_held(int probe, uint64_t card, uint64_t object)
{
    return probe < 0 || byte_held(probe, HW_LOCK_EXPORT + card * HW_OBJECTS + object);
}

/* Undo what a killed holder left half done, newest write first. */
static void roll_back(struct hw_card *card)
{
    struct hw_log *log = &card->lock.log;
    while (log->count) {
        uint64_t n = log->count - 1;
        *(uint64_t *)((char *)card + log->entry[n].where) = log->entry[n].old;
        __atomic_store_n(&log->count, n, __ATOMIC_RELEASE);
    }
}

/* Take the card; what a dead holder began is undone first. */
void hw_lock(struct hw_card *card)
{
    if (pthread_mutex_lock(&card->lock.mutex) == EOWNERDEAD) {
        roll_back(card);
        pthread_mutex_consistent(&card->lock.mutex);
    }
}

/* Let the card go; whatever was put is committed. */
void hw_unlock(struct hw_card *card)
{
    hw_commit(card);
    pthread_mutex_unlock(&card->lock.mutex);
}

/* The card's own random numbers (splitmix64): runs with one seed and one history agree. */
uint64_t hw_random(struct hw_card *card)
{
    uint64_t z = card->random + 0x9E3779B97F4A7C15ull;
    hw_put(card, &card->random, z);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return z ^ (z >> 31);
}

/* The UUID as NVIDIA writes it. */
void hw_uuid(const struct hw_model *model, char *text, size_t size)
{
    const uint8_t *u = model->uuid;
    snprintf(text, size, "%s-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x",
             model->parent ? "MIG" : "GPU", u[0], u[1], u[2], u[3], u[4], u[5], u[6], u[7], u[8], u[9], u[10],
             u[11], u[12], u[13], u[14], u[15]);
}
