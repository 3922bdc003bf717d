/* SPDX-License-Identifier: Apache-2.0 */
#include "slot.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>

#include "ledger.h"
#include "ring.h"
#include "sys.h"

#define DONTFORK 10 /* MADV_DONTFORK: linux/include/uapi/asm-generic/mman-common.h */

static const char *skip_fields(const char *text, int fields)
{
    while (fields && *text)
        fields -= *text++ == ' ';
    return text;
}

static uint64_t number(const char *text)
{
    uint64_t value = 0;
    while (*text >= '0' && *text <= '9')
        value = value * 10 + (uint64_t)(*text++ - '0');
    return value;
}

static void proc_path(char *into, size_t room, uint32_t pid, const char *leaf)
{
    char digits[12];
    int at = sizeof digits - 1;
    digits[at] = 0;
    do
        digits[--at] = (char)('0' + pid % 10);
    while (pid /= 10);
    gs_join(into, room, "/proc/", digits + at, leaf);
}

/* Start time in clock ticks of a process that is not a zombie; 0 where there is none. */
static uint64_t start_ticks(uint32_t pid)
{
    char path[32], text[512];
    proc_path(path, sizeof path, pid, "/stat");
    long got = gs_read_file(path, text, sizeof text - 1);
    if (got <= 0)
        return 0;
    text[got] = 0;
    const char *after = text; /* the name may hold spaces and parentheses: the last ')' ends it */
    for (const char *p = text; *p; p++)
        after = *p == ')' ? p : after;
    after = skip_fields(after, 1);
    if (*after == 'Z' || *after == 'X')
        return 0;
    return number(skip_fields(after, 19)); /* from field 3, the state, to field 22 */
}

/* Inode of our PID namespace from `pid:[4026531836]`, or 0. */
static uint64_t pid_namespace(void)
{
    char text[64];
    if (gs_read_link("/proc/self/ns/pid", text, sizeof text) <= 0 || !gs_starts(text, "pid:["))
        return 0;
    return number(text + 5);
}

/* Does one line of /proc/<pid>/maps (address, rights, offset, device, inode, path) name this inode? */
static int names_inode(const char *line, uint64_t inode)
{
    return number(skip_fields(line, 4)) == inode;
}

/* Does the process map the file of this inode? An unreadable list says yes. */
static int maps_inode(uint32_t pid, uint64_t inode)
{
    char path[32], text[1024];
    size_t have = 0;
    proc_path(path, sizeof path, pid, "/maps");
    int fd = inode ? gs_open(path, O_RDONLY) : -1, found = fd < 0, whole = 1;
    for (long got; !found && (got = gs_read(fd, text + have, sizeof text - 1 - have)) > 0;) {
        char *line = text;
        have += (size_t)got;
        text[have] = 0;
        for (char *p = text; *p && !found; p++) {
            if (*p != '\n')
                continue;
            found = whole && names_inode(line, inode);
            whole = 1;
            line = p + 1;
        }
        if (line == text && have == sizeof text - 1) { /* one long path: what matters of its line has been here */
            found |= whole && names_inode(line, inode);
            whole = 0;
            line = text + have;
        }
        have = (size_t)(text + have - line);
        for (size_t i = 0; i < have; i++)
            text[i] = line[i];
    }
    if (fd >= 0)
        gs_close(fd);
    return found;
}

/* Does the process that took this slot still run here, as the image that took it? Only asked where its
 * lock is free. After an exec the pid and its start are the same, but the region is no longer mapped. */
static int seen_alive(const struct gs_slot *slot, int fd)
{
    if (!slot->pid || slot->pid == gs_pid() || slot->pid_namespace != pid_namespace())
        return 0;
    uint64_t ticks = start_ticks(slot->pid);
    return ticks && ticks == slot->start_ticks && maps_inode(slot->pid, gs_inode(fd));
}

/* 0 where the mapped region is one that we understand, else -EINVAL. */
int gs_region_check(const struct gs_region *region, int64_t file_bytes)
{
    if (file_bytes < (int64_t)sizeof *region || region->magic != GS_REGION_MAGIC || region->major != GS_ABI_MAJOR ||
        region->file_bytes != sizeof *region || region->card_offset != offsetof(struct gs_region, cards) ||
        region->card_stride != sizeof(struct gs_card) || region->card_count != GS_CARDS ||
        region->slot_offset != offsetof(struct gs_region, slots) || region->slot_stride != sizeof(struct gs_slot) ||
        region->slot_count != GS_SLOTS || region->ring_offset != offsetof(struct gs_region, ring) ||
        region->ring_stride != sizeof(struct gs_record) || region->ring_length != GS_RING ||
        region->lane_count != GS_LANES || region->lock_offset != GS_LOCK_OFFSET)
        return -EINVAL;
    return 0;
}

/* The region, mapped for good, or NULL where it is missing, short or foreign. */
struct gs_region *gs_region_map(const char *path)
{
    int fd = gs_open(path, O_RDWR | O_NOFOLLOW);
    if (fd < 0)
        return NULL;
    struct gs_region *region = NULL;
    int64_t bytes = gs_file_size(fd);
    if (bytes >= (int64_t)sizeof *region)
        region = gs_map(sizeof *region, PROT_READ | PROT_WRITE, MAP_SHARED, fd);
    gs_close(fd);
    if (region && gs_region_check(region, bytes) < 0) {
        gs_unmap(region, sizeof *region);
        region = NULL;
    }
    return region;
}

/* Make a locked slot ours. The lock is held by `fd`, which the anchor mapping now keeps. */
static void fill(struct gs_slot *slot)
{
    slot->pid = gs_pid();
    slot->start_ticks = start_ticks(slot->pid);
    slot->pid_namespace = pid_namespace();
    slot->taken_ns = gs_now_ns();
    slot->modules = slot->unknown = 0;
    for (int card = 0; card < GS_CARDS; card++)
        slot->exported[card] = slot->imported[card] = slot->guessed[card] = slot->underway[card] =
            slot->managed[card] = 0;
    char name[64] = {0};
    long got = gs_read_file("/proc/self/comm", name, sizeof name - 1);
    for (long i = 0; i < (long)sizeof slot->name; i++)
        slot->name[i] = i < got && name[i] != '\n' && i < 15 ? (uint8_t)name[i] : 0;
    __atomic_store_n(&slot->generation, slot->generation + 1, __ATOMIC_SEQ_CST);
    __atomic_store_n(&slot->state, GS_SLOT_LIVE, __ATOMIC_SEQ_CST);
}

static void raise_high(struct gs_region *region, uint32_t high)
{
    uint32_t seen = __atomic_load_n(&region->slots_high, __ATOMIC_SEQ_CST);
    while (seen < high && !__atomic_compare_exchange_n(&region->slots_high, &seen, high, 0, __ATOMIC_SEQ_CST,
                                                       __ATOMIC_SEQ_CST))
        ;
}

static uint64_t peek(const uint64_t *from) { return __atomic_load_n(from, __ATOMIC_RELAXED); }

/* Bytes of this card that living processes map from others, so far as no other ghost answers for
 * them. A file descriptor says nothing about whose memory it was: any dead exporter's may be it. */
uint64_t gs_imports_of(const struct gs_region *region, uint32_t card, uint32_t but)
{
    uint64_t mapped = 0, answered = 0;
    uint32_t high = __atomic_load_n(&region->slots_high, __ATOMIC_SEQ_CST);
    for (uint32_t i = 0; i < high && i < GS_SLOTS; i++) {
        uint32_t state = __atomic_load_n(&region->slots[i].state, __ATOMIC_SEQ_CST);
        if (i == but || state == GS_SLOT_FREE)
            continue;
        if (state == GS_SLOT_LIVE)
            mapped += peek(&region->slots[i].imported[card]);
        else
            answered += peek(&region->slots[i].exported[card]);
    }
    return mapped > answered ? mapped - answered : 0;
}

/* Empty a slot whose lock the caller has just got with `fd`, but for memory that a living process still maps:
 * then it becomes a ghost. Adds the bytes given back. 0, or -EBUSY where it is not free now: a ghost,
 * or a process seen alive after all (it unmapped its anchor). */
static int clear(struct gs_region *region, uint32_t index, int fd, uint64_t *bytes)
{
    struct gs_slot *slot = &region->slots[index];
    uint32_t state = __atomic_load_n(&slot->state, __ATOMIC_SEQ_CST);
    uint64_t keep[GS_CARDS], kept = 0;
    if (state == GS_SLOT_LIVE && seen_alive(slot, fd))
        return -EBUSY;
    for (uint32_t card = 0; card < GS_CARDS; card++) {
        uint64_t exported = peek(&slot->exported[card]), mapped = gs_imports_of(region, card, index);
        keep[card] = exported < mapped ? exported : mapped;
        __atomic_store_n(&slot->imported[card], 0, __ATOMIC_RELAXED);
        __atomic_store_n(&slot->exported[card], keep[card], __ATOMIC_RELAXED);
        kept += keep[card];
        __atomic_fetch_add(&region->cards[card].released_granules, gs_granules(peek(&slot->guessed[card])),
                           __ATOMIC_SEQ_CST);
        __atomic_store_n(&slot->guessed[card], 0, __ATOMIC_SEQ_CST);
        __atomic_store_n(&slot->underway[card], 0, __ATOMIC_SEQ_CST);
        __atomic_store_n(&slot->managed[card], 0, __ATOMIC_SEQ_CST);
    }
    uint64_t given = gs_empty_slot(region, index, keep);
    if (given)
        gs_ring_write(region, &(struct gs_record){.kind = GS_BREACH_REAPED, .card = 0xffff, .pid = slot->pid,
                                                  .used = given});
    __atomic_store_n(&slot->state, kept ? GS_SLOT_GHOST : GS_SLOT_FREE, __ATOMIC_SEQ_CST);
    *bytes += given;
    return kept ? -EBUSY : 0;
}

static int try_take(struct gs_region *region, const char *path, uint32_t index)
{
    int fd = gs_open(path, O_RDWR | O_NOFOLLOW), rc;
    if (fd < 0)
        return fd;
    uint64_t given = 0;
    rc = gs_lock_byte(fd, GS_LOCK_OFFSET + index);
    if (rc == 0)
        rc = clear(region, index, fd, &given);
    if (rc == 0) {
        void *anchor = gs_map(4096, PROT_READ, MAP_SHARED, fd);
        rc = anchor ? gs_advise(anchor, 4096, DONTFORK) : -ENOMEM;
        if (rc == 0) {
            raise_high(region, index + 1);
            fill(&region->slots[index]);
        } else if (anchor) {
            gs_unmap(anchor, 4096);
        }
    }
    gs_close(fd);
    return rc;
}

/* Take a slot for this process. Returns 0 and the slot, -ENOSPC where living processes hold them
 * all, or what opening the region failed with. pre: taken once per process (again after fork). */
int gs_slot_take(struct gs_region *region, const char *path, uint32_t *slot)
{
    for (int turn = 0; turn < 2; turn++) { /* free ones first, then those of the dead */
        for (uint32_t i = 0; i < GS_SLOTS; i++) {
            struct gs_slot *it = &region->slots[i];
            if (turn == 0 && __atomic_load_n(&it->state, __ATOMIC_SEQ_CST) != GS_SLOT_FREE && it->pid != gs_pid())
                continue;
            int rc = try_take(region, path, i);
            if (rc == 0) {
                *slot = i;
                return 0;
            }
            if (rc != -EAGAIN && rc != -EACCES && rc != -EBUSY)
                return rc;
        }
    }
    return -ENOSPC;
}

static uint64_t reap(struct gs_region *region, const char *path, int mine, uint32_t wanted, uint32_t *count)
{
    uint64_t bytes = 0;
    uint32_t high = __atomic_load_n(&region->slots_high, __ATOMIC_SEQ_CST);
    for (uint32_t i = 0; i < high && i < GS_SLOTS; i++) {
        struct gs_slot *slot = &region->slots[i];
        if ((int)i == mine || __atomic_load_n(&slot->state, __ATOMIC_SEQ_CST) != wanted)
            continue;
        int fd = gs_open(path, O_RDWR | O_NOFOLLOW);
        if (fd < 0)
            break;
        if (gs_lock_byte(fd, GS_LOCK_OFFSET + i) == 0 && clear(region, i, fd, &bytes) == 0)
            ++*count;
        gs_close(fd);
    }
    return bytes;
}

/* Give back what dead processes hold: the bytes, and how many slots where `slots` is given. Leaves
 * out the slot `mine` (-1: none). A slot that somebody else is just reaping is theirs. */
uint64_t gs_reap(struct gs_region *region, const char *path, int mine, uint32_t *slots)
{
    uint32_t count = 0;
    uint64_t bytes = reap(region, path, mine, GS_SLOT_LIVE, &count);
    bytes += reap(region, path, mine, GS_SLOT_GHOST, &count); /* their importers may just have gone */
    if (slots)
        *slots = count;
    return bytes;
}
