/* SPDX-License-Identifier: Apache-2.0 */
#include "table.h"

#include <errno.h>
#include <sys/mman.h>

#include "spin.h"

#define SHARDS 64
#define FIRST 128 /* entries of a fresh shard */

struct shard {
    uint32_t lock;
    uint32_t live;
    uint64_t capacity; /* a power of two, or 0 */
    struct gs_entry *entries; /* kind 0: empty */
} __attribute__((aligned(64)));

static struct shard shards[SHARDS];

static uint64_t mix(uint64_t key, uint32_t kind)
{
    key = (key ^ (uint64_t)kind << 56) * 0x9E3779B97F4A7C15ULL; /* addresses differ in few bits: stir twice */
    key = (key ^ key >> 32) * 0xD6E8FEB86659FD93ULL;
    return key ^ key >> 32;
}

static void lock(struct shard *s) { gs_spin_enter(&s->lock); }
static void unlock(struct shard *s) { gs_spin_leave(&s->lock); }

static struct gs_entry *slot_for(struct gs_entry *entries, uint64_t capacity, uint64_t key, uint32_t kind)
{
    for (uint64_t at = mix(key, kind) >> 6;; at++) {
        struct gs_entry *e = &entries[at & (capacity - 1)];
        if (e->kind == GS_KIND_NONE || (e->key == key && e->kind == kind))
            return e;
    }
}

/* Room for one more at load <= 1/2. 0 or -ENOMEM. */
static int grow(struct shard *s)
{
    uint64_t wider = s->capacity ? s->capacity * 2 : FIRST;
    if (s->capacity && (uint64_t)(s->live + 1) * 2 <= s->capacity)
        return 0;
    struct gs_entry *fresh =
        gs_map(wider * sizeof *fresh, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1);
    if (!fresh)
        return -ENOMEM;
    for (uint64_t i = 0; i < s->capacity; i++)
        if (s->entries[i].kind != GS_KIND_NONE)
            *slot_for(fresh, wider, s->entries[i].key, s->entries[i].kind) = s->entries[i];
    if (s->capacity)
        gs_unmap(s->entries, s->capacity * sizeof *fresh);
    s->entries = fresh;
    s->capacity = wider;
    return 0;
}

/* Close the gap that a removed entry leaves, so that probing needs no tombstones. */
static void close_gap(struct shard *s, uint64_t gap)
{
    uint64_t mask = s->capacity - 1;
    for (uint64_t at = (gap + 1) & mask; s->entries[at].kind != GS_KIND_NONE; at = (at + 1) & mask) {
        uint64_t home = (mix(s->entries[at].key, s->entries[at].kind) >> 6) & mask;
        if (((at - home) & mask) >= ((at - gap) & mask)) {
            s->entries[gap] = s->entries[at];
            gap = at;
        }
    }
    s->entries[gap].kind = GS_KIND_NONE;
}

static struct shard *shard_of(uint64_t key, uint32_t kind) { return &shards[mix(key, kind) & (SHARDS - 1)]; }

/* Remember an entry, replacing one of the same key and kind. 0 or -ENOMEM. */
int gs_table_put(const struct gs_entry *entry)
{
    struct shard *s = shard_of(entry->key, entry->kind);
    lock(s);
    int rc = grow(s);
    if (rc == 0) {
        struct gs_entry *e = slot_for(s->entries, s->capacity, entry->key, entry->kind);
        s->live += e->kind == GS_KIND_NONE;
        *e = *entry;
    }
    unlock(s);
    return rc;
}

static int find(uint64_t key, enum gs_kind kind, struct gs_entry *out, int take)
{
    struct shard *s = shard_of(key, kind);
    int rc = -ENOENT;
    lock(s);
    if (s->capacity) {
        struct gs_entry *e = slot_for(s->entries, s->capacity, key, kind);
        if (e->kind != GS_KIND_NONE) {
            *out = *e;
            rc = 0;
            if (take) {
                close_gap(s, (uint64_t)(e - s->entries));
                s->live--;
            }
        }
    }
    unlock(s);
    return rc;
}

/* Take an entry out. 0, or -ENOENT where it is not ours. */
int gs_table_take(uint64_t key, enum gs_kind kind, struct gs_entry *out) { return find(key, kind, out, 1); }

/* Look at an entry. 0 or -ENOENT. */
int gs_table_get(uint64_t key, enum gs_kind kind, struct gs_entry *out) { return find(key, kind, out, 0); }

/* Find an entry whose `bytes` from its key on hold `at`, wherever it begins: looks through all of them. 0 or -ENOENT. */
int gs_table_around(uint64_t at, enum gs_kind kind, struct gs_entry *out)
{
    int rc = -ENOENT;
    for (int i = 0; rc < 0 && i < SHARDS; i++) {
        struct shard *s = &shards[i];
        lock(s);
        for (uint64_t slot = 0; rc < 0 && slot < s->capacity; slot++) {
            const struct gs_entry *e = &s->entries[slot];
            if (e->kind != kind || at < e->key || at - e->key >= e->bytes)
                continue;
            *out = *e;
            rc = 0;
        }
        unlock(s);
    }
    return rc;
}

/* Count an entry up or down; it exists while the count is above 0. The new count, or -ENOMEM. */
int64_t gs_table_count(uint64_t key, enum gs_kind kind, int by)
{
    struct shard *s = shard_of(key, kind);
    int64_t count = 0;
    lock(s);
    int rc = grow(s);
    if (rc == 0) {
        struct gs_entry *e = slot_for(s->entries, s->capacity, key, kind);
        count = (e->kind == GS_KIND_NONE ? 0 : (int64_t)e->count) + by;
        if (count > 0) {
            s->live += e->kind == GS_KIND_NONE;
            *e = (struct gs_entry){.key = key, .kind = (uint16_t)kind, .count = (uint32_t)count};
        } else if (e->kind != GS_KIND_NONE) {
            close_gap(s, (uint64_t)(e - s->entries));
            s->live--;
        }
    }
    unlock(s);
    return rc < 0 ? rc : count;
}

/* Take one more into the cut, making room. 0 or -ENOMEM. */
static int keep_cut(struct gs_cut *cut, const struct gs_entry *entry)
{
    if (cut->count == cut->room) {
        uint64_t wider = cut->room ? cut->room * 4 : FIRST;
        struct gs_entry *fresh =
            gs_map(wider * sizeof *fresh, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1);
        if (!fresh)
            return -ENOMEM;
        for (uint64_t i = 0; i < cut->count; i++)
            fresh[i] = cut->entries[i];
        if (cut->room)
            gs_unmap(cut->entries, cut->room * sizeof *fresh);
        cut->entries = fresh;
        cut->room = wider;
    }
    cut->entries[cut->count++] = *entry;
    return 0;
}

/* Take out everything that dies with a context. Each shard in one go: whoever removes an entry
 * meanwhile moves others about. What there is no memory for stays in. */
void gs_table_cut(uint64_t owner, struct gs_cut *cut)
{
    *cut = (struct gs_cut){0};
    for (int i = 0; i < SHARDS; i++) {
        struct shard *s = &shards[i];
        lock(s);
        for (uint64_t at = 0; at < s->capacity;) {
            const struct gs_entry *e = &s->entries[at];
            if (e->kind == GS_KIND_NONE || e->kind >= GS_KIND_IMPORT || e->extra != owner || keep_cut(cut, e) < 0) {
                at++;
                continue;
            }
            close_gap(s, at); /* may move another one here: look again */
            s->live--;
        }
        unlock(s);
    }
}

/* Done with a cut: tell `each` of its entries, or put them back where that is NULL. */
void gs_table_cut_end(struct gs_cut *cut, void (*each)(const struct gs_entry *))
{
    for (uint64_t i = 0; i < cut->count; i++)
        each ? each(&cut->entries[i]) : (void)gs_table_put(&cut->entries[i]);
    if (cut->room)
        gs_unmap(cut->entries, cut->room * sizeof *cut->entries);
    *cut = (struct gs_cut){0};
}

/* Forget everything: a forked child owns nothing of its parent's. */
static void forget_all(void)
{
    for (int i = 0; i < SHARDS; i++) {
        if (shards[i].capacity)
            gs_unmap(shards[i].entries, shards[i].capacity * sizeof(struct gs_entry));
        shards[i] = (struct shard){0};
    }
}

GS_FORGET_AFTER_FORK(forget_all);
