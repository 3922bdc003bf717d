/* SPDX-License-Identifier: Apache-2.0 */
/* The operating system without libc: raw system calls (no errno, no symbol versions), clocks and
 * the few string functions that a library linked with -nostdlib needs. Calls return >= 0 or -errno.
 */
#ifndef GS_SYS_H
#define GS_SYS_H

#include <stddef.h>
#include <stdint.h>

#define GS_LIKELY(x) __builtin_expect(!!(x), 1)
#define GS_UNLIKELY(x) __builtin_expect(!!(x), 0)

long gs_call(long number, long a, long b, long c, long d, long e, long f);

int gs_open(const char *path, int flags);
int gs_close(int fd);
long gs_pread(int fd, void *into, size_t bytes, uint64_t offset);
long gs_read(int fd, void *into, size_t bytes);
long gs_read_file(const char *path, void *into, size_t bytes);
long gs_read_link(const char *path, char *into, size_t room);
void *gs_map(size_t bytes, int protection, int flags, int fd);
void gs_unmap(void *at, size_t bytes);
int gs_advise(void *at, size_t bytes, int advice);
int gs_lock_byte(int fd, uint64_t offset);
int gs_byte_locked(int fd, uint64_t offset);
int64_t gs_file_size(int fd);
uint64_t gs_inode(int fd);
uint32_t gs_pid(void);
uint32_t gs_tid(void);
void gs_yield(void);
void gs_sleep_ns(uint64_t ns);
uint64_t gs_now_ns(void);
uint64_t gs_coarse_ns(void);

uint32_t gs_thread_hash(void);
size_t gs_length(const char *text);
int gs_same(const char *a, const char *b);
int gs_starts(const char *text, const char *prefix);
void gs_copy_text(char *into, size_t room, const char *from);
void gs_join(char *into, size_t room, const char *a, const char *b, const char *c);
uint32_t gs_crc32(const void *from, size_t bytes);
void gs_log(const char *text, const char *detail);

#endif
