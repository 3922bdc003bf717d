/* SPDX-License-Identifier: Apache-2.0 */
#include "sys.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>

#define OFD_GETLK 36 /* F_OFD_GETLK, F_OFD_SETLK: linux/include/uapi/asm-generic/fcntl.h */
#define OFD_SETLK 37

/* One system call; the result or -errno. */
#if defined(__x86_64__)
long gs_call(long number, long a, long b, long c, long d, long e, long f)
{
    long result;
    register long r10 __asm__("r10") = d;
    register long r8 __asm__("r8") = e;
    register long r9 __asm__("r9") = f;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                     : "rcx", "r11", "memory");
    return result;
}
#elif defined(__aarch64__)
long gs_call(long number, long a, long b, long c, long d, long e, long f)
{
    register long x8 __asm__("x8") = number;
    register long x0 __asm__("x0") = a;
    register long x1 __asm__("x1") = b;
    register long x2 __asm__("x2") = c;
    register long x3 __asm__("x3") = d;
    register long x4 __asm__("x4") = e;
    register long x5 __asm__("x5") = f;
    __asm__ volatile("svc 0"
                     : "+r"(x0)
                     : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5)
                     : "memory");
    return x0;
}
#else
#error "x86-64 and aarch64 only"
#endif

#define CALL3(number, a, b, c) gs_call(number, (long)(a), (long)(b), (long)(c), 0, 0, 0)

int gs_open(const char *path, int flags)
{
    return (int)gs_call(SYS_openat, AT_FDCWD, (long)path, flags | O_CLOEXEC | O_NONBLOCK | O_NOCTTY, 0, 0, 0);
}

int gs_close(int fd) { return (int)CALL3(SYS_close, fd, 0, 0); }

long gs_pread(int fd, void *into, size_t bytes, uint64_t offset)
{
    return gs_call(SYS_pread64, fd, (long)into, (long)bytes, (long)offset, 0, 0);
}

/* What one read gives; 0 at the end. */
long gs_read(int fd, void *into, size_t bytes)
{
    long got;
    do
        got = CALL3(SYS_read, fd, into, bytes);
    while (got == -EINTR);
    return got;
}

/* The first `bytes` of a file: how many there were, or -errno. Opened again each time: the program
 * may close any descriptor behind our back. */
long gs_read_file(const char *path, void *into, size_t bytes)
{
    int fd = gs_open(path, O_RDONLY);
    if (fd < 0)
        return fd;
    size_t have = 0;
    long got = 0;
    while (have < bytes) {
        got = gs_read(fd, (char *)into + have, bytes - have);
        if (got <= 0)
            break;
        have += (size_t)got;
    }
    gs_close(fd);
    return got < 0 ? got : (long)have;
}

/* Where a symbolic link points, zero-terminated: its length or -errno. */
long gs_read_link(const char *path, char *into, size_t room)
{
    long got = gs_call(SYS_readlinkat, AT_FDCWD, (long)path, (long)into, (long)room - 1, 0, 0);
    if (got >= 0)
        into[got] = 0;
    return got;
}

/* A mapping, or NULL. */
void *gs_map(size_t bytes, int protection, int flags, int fd)
{
    long at = gs_call(SYS_mmap, 0, (long)bytes, protection, flags, fd, 0);
    return at < 0 && at > -4096 ? NULL : (void *)at;
}

void gs_unmap(void *at, size_t bytes) { (void)CALL3(SYS_munmap, at, bytes, 0); }
int gs_advise(void *at, size_t bytes, int advice) { return (int)CALL3(SYS_madvise, at, bytes, advice); }

/* Lock one byte for this open file description: 0, or -EAGAIN where another one holds it. */
int gs_lock_byte(int fd, uint64_t offset)
{
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = (off_t)offset, .l_len = 1};
    return (int)CALL3(SYS_fcntl, fd, OFD_SETLK, &lock);
}

/* 1 where another open file description holds the byte, 0 where none does, or -errno. */
int gs_byte_locked(int fd, uint64_t offset)
{
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = (off_t)offset, .l_len = 1};
    int rc = (int)CALL3(SYS_fcntl, fd, OFD_GETLK, &lock);
    return rc < 0 ? rc : lock.l_type != F_UNLCK;
}

/* Size of a regular file, or -errno. */
int64_t gs_file_size(int fd)
{
    struct stat about;
    int rc = (int)CALL3(SYS_fstat, fd, &about, 0);
    if (rc < 0)
        return rc;
    return S_ISREG(about.st_mode) ? (int64_t)about.st_size : -EINVAL;
}

/* Number of the file within its file system; 0: unknown. */
uint64_t gs_inode(int fd)
{
    struct stat about;
    return (int)CALL3(SYS_fstat, fd, &about, 0) < 0 ? 0 : (uint64_t)about.st_ino;
}

uint32_t gs_pid(void) { return (uint32_t)CALL3(SYS_getpid, 0, 0, 0); }
uint32_t gs_tid(void) { return (uint32_t)CALL3(SYS_gettid, 0, 0, 0); }
void gs_yield(void) { (void)CALL3(SYS_sched_yield, 0, 0, 0); }

void gs_sleep_ns(uint64_t ns)
{
    struct timespec span = {.tv_sec = (time_t)(ns / 1000000000), .tv_nsec = (long)(ns % 1000000000)};
    (void)CALL3(SYS_nanosleep, &span, 0, 0);
}

static uint64_t clock_ns(clockid_t clock)
{
    struct timespec now;
    clock_gettime(clock, &now); /* the one libc call in a hot path: its vDSO costs 5 to 20 ns */
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

uint64_t gs_now_ns(void) { return clock_ns(CLOCK_MONOTONIC); }
uint64_t gs_coarse_ns(void) { return clock_ns(CLOCK_MONOTONIC_COARSE); }

/* Something that differs between threads, from the thread pointer: no TLS, no system call. */
uint32_t gs_thread_hash(void)
{
    uint64_t pointer = (uint64_t)__builtin_thread_pointer();
    return (uint32_t)((pointer >> 6) * 0x9E3779B97F4A7C15ULL >> 40);
}

size_t gs_length(const char *text)
{
    size_t n = 0;
    while (text[n])
        n++;
    return n;
}

int gs_same(const char *a, const char *b)
{
    while (*a && *a == *b)
        a++, b++;
    return *a == *b;
}

int gs_starts(const char *text, const char *prefix)
{
    while (*prefix && *text == *prefix)
        text++, prefix++;
    return !*prefix;
}

/* Copy, cut to `room` - 1. */
void gs_copy_text(char *into, size_t room, const char *from) { gs_join(into, room, from, "", ""); }

void gs_join(char *into, size_t room, const char *a, const char *b, const char *c)
{
    const char *parts[3] = {a, b, c};
    size_t at = 0;
    for (int i = 0; i < 3; i++)
        for (const char *p = parts[i]; *p && at + 1 < room; p++)
            into[at++] = *p;
    into[at] = 0;
}

/* CRC-32 of IEEE 802.3, as zlib computes it; four bits at a time. */
uint32_t gs_crc32(const void *from, size_t bytes)
{
    static const uint32_t nibble[16] = {
        0x00000000, 0x1db71064, 0x3b6e20c8, 0x26d930ac, 0x76dc4190, 0x6b6b51f4, 0x4db26158, 0x5005713c,
        0xedb88320, 0xf00f9344, 0xd6d6a3e8, 0xcb61b38c, 0x9b64c2b0, 0x86d3d2d4, 0xa00ae278, 0xbdbdf21c,
    };
    const uint8_t *p = from;
    uint32_t crc = 0xffffffffU;
    for (size_t i = 0; i < bytes; i++) {
        crc ^= p[i];
        crc = crc >> 4 ^ nibble[crc & 15];
        crc = crc >> 4 ^ nibble[crc & 15];
    }
    return ~crc;
}

/* At most one line to stderr in ten seconds per process; never stdout, never fatal. */
void gs_log(const char *text, const char *detail)
{
    static uint64_t last;
    uint64_t now = gs_coarse_ns() | 1, seen = __atomic_load_n(&last, __ATOMIC_RELAXED);
    if ((seen && now - seen < 10000000000ULL) ||
        !__atomic_compare_exchange_n(&last, &seen, now, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
        return;
    char line[256];
    gs_join(line, sizeof line - 1, "gpushare: ", text, detail);
    size_t end = gs_length(line);
    line[end] = '\n';
    (void)CALL3(SYS_write, 2, line, end + 1);
}
