/* SPDX-License-Identifier: Apache-2.0 */
/* What this process owns: driver handle or address -> what was charged for it.
 *
 * Open addressing in shards, each behind a spin lock of the process; memory comes from mmap, so no
 * allocator of the program is touched. Flat in the number of live entries.
 */
#ifndef GS_TABLE_H
#define GS_TABLE_H

#include <stdint.h>

enum gs_kind {
    GS_KIND_NONE,
    GS_KIND_MEMORY,  /* cuMemAlloc and its like: key is the address */
    GS_KIND_ARRAY,
    GS_KIND_CONTEXT,
    GS_KIND_LIMITS, /* heap, stacks and printf buffer of a context, beyond its first */
    GS_KIND_MODULE, /* `count` units of its context's code */
    GS_KIND_CODE,   /* what all modules and libraries of a context take: key is the context, `count` units in blocks */
    GS_KIND_LOADED, /* a library in a context: key is that of its GS_KIND_LIBRARY, `count` units */
    GS_KIND_LIBRARY, /* what a library will take of a card: key is the handle and the card, `count` units; not charged */
    GS_KIND_KERNEL,  /* a library's kernel; `extra` is the library */
    GS_KIND_IMPORT, /* memory of another process: 0 bytes */
    GS_KIND_POOLED, /* from a pool, which is what is charged; `extra` is the pool's number */
    GS_KIND_OBJECT, /* VMM: a physical allocation; `count` references of handles and mappings */
    GS_KIND_HANDLE, /* VMM: a handle; `extra` is its object, `count` how often it must be released */
    GS_KIND_BLOCK,  /* a block of small allocations: key is address >> 21, `count` how many live in it */
    GS_KIND_MAPPING, /* VMM: an address; `extra` is its object, `bytes` the length mapped */
    GS_KIND_EXEC, /* an executable graph: `bytes` a launch may need, `extra` on which device; not charged */
    GS_KIND_CIG   /* a stream that is captured into a graphics command list */
};

/* Bits of `count` where the kind is GS_KIND_MEMORY. */
enum gs_entry_bit { GS_ENTRY_EXPORTED = 1, GS_ENTRY_SMALL = 2, GS_ENTRY_MANAGED = 4 };

struct gs_entry {
    uint64_t key;
    uint64_t bytes; /* charged */
    int16_t card;
    uint16_t kind;
    uint32_t count; /* references, where the kind counts them */
    uint64_t extra; /* the context it dies with, or what the kind says */
};

/* What is charged for it is an estimate. */
static inline int gs_kind_estimated(uint32_t kind)
{
    return kind == GS_KIND_CONTEXT || kind == GS_KIND_LIMITS || kind == GS_KIND_CODE;
}

/* Entries taken out together, in memory of their own. */
struct gs_cut {
    struct gs_entry *entries;
    uint64_t count, room;
};

int gs_table_put(const struct gs_entry *entry);
int gs_table_take(uint64_t key, enum gs_kind kind, struct gs_entry *out);
int gs_table_get(uint64_t key, enum gs_kind kind, struct gs_entry *out);
int gs_table_around(uint64_t at, enum gs_kind kind, struct gs_entry *out);
int64_t gs_table_count(uint64_t key, enum gs_kind kind, int by);
void gs_table_cut(uint64_t owner, struct gs_cut *cut);
void gs_table_cut_end(struct gs_cut *cut, void (*each)(const struct gs_entry *));

#endif
