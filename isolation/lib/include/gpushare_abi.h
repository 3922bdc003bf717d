/* SPDX-License-Identifier: Apache-2.0 */
/* The shared memory of gpushare: what the library, the node agent, `gpushare run` and the
 * exporter tell each other. Mirrored in isolation/contract/abi.py; tests/abi compares both.
 *
 * Three files per container, little-endian, fixed-width fields, no pointers:
 *
 *   limits   written by the host in place under a seqlock, read-only to the container: the promise
 *   feed     written by the host in place under a seqlock, read-only to the container: what only
 *            the host can measure (own GPU time) and decide (the rate granted now)
 *   region   writable by the container: ledger, slots, breach ring. Untrusted outside it.
 *
 * A file never shrinks, grows or is renamed while in use. Majors are incompatible; a new minor
 * only gives meaning to bytes that were reserved (zero): 1, memory as the driver counts it; 2, a ceiling of compute.
 * Readers refuse a foreign major.
 */
#ifndef GPUSHARE_ABI_H
#define GPUSHARE_ABI_H

#include <stddef.h>
#include <stdint.h>

#define GS_LIMITS_MAGIC 0x314d494c48535047ULL /* "GPSHLIM1" */
#define GS_FEED_MAGIC 0x3144454648535047ULL   /* "GPSHFED1" */
#define GS_REGION_MAGIC 0x3147455248535047ULL /* "GPSHREG1" */
#define GS_ABI_MAJOR 1
/* Minor 1: memory as the driver counts it; own time of long kernels. Minor 2: ceiling of compute. */
#define GS_ABI_MINOR 2

#define GS_CARDS 16   /* cards of one container */
#define GS_SLOTS 1024 /* processes of one container with a CUDA context */
#define GS_LANES 4    /* concurrent ledger steps of one process on one card */
#define GS_RING 1024  /* breach records kept */
#define GS_GRANULE 512ULL /* bytes; the ledger's unit. cuMemAlloc aligns to 256 or more */
#define GS_LOCK_OFFSET (1ULL << 40) /* slot i is locked at byte GS_LOCK_OFFSET + i, past the end */
#define GS_EDGE_OFFSET (GS_LOCK_OFFSET + GS_SLOTS) /* + card: by one call that may pass the promise for a moment */

/* Card word: granules used (32) | owner lane (12) | sequence (20). */
#define GS_WORD_OWNER_SHIFT 32
#define GS_WORD_SEQ_SHIFT 44
/* Lane state and intent: granules used, signed (40) | sequence (24). */
#define GS_LANE_SEQ_SHIFT 40

enum gs_policy {
    GS_POLICY_FIXED,    /* never more than the promise, but for a kernel too long to be stopped */
    GS_POLICY_BURST,    /* the promise, and what neighbours leave idle */
    GS_POLICY_WEIGHT,   /* active neighbours share by weight */
    GS_POLICY_PRIORITY, /* online before offline */
    GS_POLICY_NONE      /* no compute limit */
};

enum gs_limits_flag {
    GS_LIMITS_STRICT = 1,        /* refuse entry points that the library does not know */
    GS_LIMITS_REFUSE_MANAGED = 2 /* managed memory is refused instead of counted */
};

/* A ghost is a dead process whose exported memory a living one still maps: charged until that ends. */
enum gs_slot_state { GS_SLOT_FREE, GS_SLOT_LIVE, GS_SLOT_GHOST };

enum gs_breach {
    GS_BREACH_DENIED = 1,         /* an allocation past the promise, refused */
    GS_BREACH_OVER = 2,           /* the host measured more than the promise */
    GS_BREACH_UNINSTRUMENTED = 3, /* a GPU process without a slot (host side) */
    GS_BREACH_UNKNOWN_ENTRY = 4,  /* an entry point the library does not know was asked for */
    GS_BREACH_THROTTLED = 5,
    GS_BREACH_CONFIG = 6,   /* a limits file that cannot be believed */
    GS_BREACH_REAPED = 7,   /* memory of a dead process given back */
    GS_BREACH_MANAGED = 8,  /* managed memory refused by policy */
    GS_BREACH_NO_SLOT = 9,  /* every slot taken by a live process */
    GS_BREACH_UNLISTED = 10 /* a card that was not promised was used */
};

enum gs_memory_flag { GS_MEMORY_VALID = 1 /* the figures of memory are a sample's; without it there is none */ };

enum gs_card_flag { GS_CARD_UNCORRECTED = 1 /* no own GPU time from the host: event time is charged */ };

struct gs_limit_card {
    uint8_t uuid[16];       /* as cuDeviceGetUuid tells; MIG instances have their own */
    uint64_t memory_bytes;  /* promise */
    uint64_t context_bytes; /* estimate for one context; 0: the library's own */
    uint32_t core_ppm;      /* promised part of the card's time in millionths; 0: no compute limit */
    uint32_t policy;        /* enum gs_policy */
    uint32_t weight;
    uint32_t online; /* GS_POLICY_PRIORITY: 1 before 0 */
    uint32_t ceiling_ppm; /* most that is ever granted, in millionths; 0: no ceiling; since minor 2 */
    uint8_t reserved[76];
};

struct gs_limits {
    uint64_t magic;
    uint16_t major, minor;
    uint32_t bytes;    /* sizeof(struct gs_limits) of the writer */
    uint32_t sequence; /* odd while being rewritten */
    uint32_t crc;      /* CRC-32 (IEEE 802.3) of everything from `generation` to the end */
    uint64_t generation; /* grows with every change */
    uint32_t flags;      /* enum gs_limits_flag */
    uint32_t card_count, card_offset, card_stride;
    uint8_t promise[64]; /* promise id, zero-padded ASCII */
    uint8_t reserved[144];
    struct gs_limit_card cards[GS_CARDS];
    uint8_t tail[1792];
};

/* Rewritten at least every 250 ms, or it has no writer. `sample_ns` is the time of the driver's own sample, not
 * of the moment when it was asked or written down: the library compares what it had charged then. A
 * sample that says nothing new leaves the three figures of own time as they were.
 *
 * The driver's figure of memory corrects the ledger: ledger + excess + charge must fit the promise. It stands as long as
 * GS_MEMORY_VALID does and the feed is written, whatever its age: the host clears the flag. */
struct gs_feed_card {
    uint64_t own_ns;    /* GPU time of this container on this card since the feed began */
    uint64_t sample_ns; /* CLOCK_MONOTONIC that own_ns is for; 0: no sample yet */
    uint64_t reserved;   /* zero; early hosts wrote bytes here that no reader used */
    uint32_t rate_ppm;  /* granted now; 0: no word, obey the promise */
    uint32_t rounding_ppm; /* own_ns may be wrong by this part of the time either way: samples are rounded */
    uint64_t sampled_ns; /* of the time since the feed began, so much was seen by samples; 0: all of it */
    uint64_t memory_ns;  /* CLOCK_MONOTONIC of the sample of memory */
    int32_t excess_granules; /* driver's figure less the ledger's; below 0: estimates were too high by this */
    uint32_t ledger_granules; /* in the ledger at that sample */
    uint32_t released_granules; /* gs_card.released_granules then, its low 32 bits */
    uint32_t memory_flags;      /* enum gs_memory_flag */
};

struct gs_feed {
    uint64_t magic;
    uint16_t major, minor;
    uint32_t bytes;
    uint32_t sequence;
    uint32_t crc; /* as in gs_limits, from `written_ns` */
    uint64_t written_ns; /* CLOCK_MONOTONIC; older than 250 ms: no writer */
    uint32_t card_count, card_offset, card_stride, pad;
    uint8_t reserved[16];
    struct gs_feed_card cards[GS_CARDS]; /* in the order of the limits file */
};

struct gs_card {
    uint64_t word; /* see above */
    uint64_t line0[7];
    uint64_t paid_until_ns; /* when the charged work is paid for at the granted rate; CLOCK_MONOTONIC */
    uint64_t charged_ns;    /* GPU time charged by events and estimates */
    uint64_t event_ns;      /* GPU time by events */
    uint64_t launches;
    uint64_t throttled_ns; /* time launches were held back */
    uint64_t wanted_ns;    /* CLOCK_MONOTONIC of the last launch or wait */
    uint32_t rate_ppm;     /* obeyed last */
    uint32_t flags;        /* enum gs_card_flag */
    int64_t owed_ns;       /* own time that charges have missed so far; negative: charged too much */
    uint8_t uuid[16];
    uint64_t limit_bytes; /* obeyed last */
    uint64_t peak_bytes;
    uint64_t denied;
    uint64_t denied_bytes;
    uint64_t released_granules; /* guesses that were given back, all that there ever were */
    uint64_t line2;
    uint64_t fed_sample_ns; /* the host's sample up to which own time was compared with charges */
    uint64_t fed_own_ns;    /* own time at that sample */
    int64_t corrected_ns;   /* own time less charges, over all samples compared */
    uint64_t overrun_ns;   /* own time that kernels too long to be stopped took beyond the granted rate; since minor 1 */
    uint64_t line3[4];
};

struct gs_lane {
    uint64_t state;  /* what this lane holds and its last finished step */
    uint64_t intent; /* what the step `sequence` will make of it */
};

struct gs_slot {
    uint32_t state; /* enum gs_slot_state */
    uint32_t generation;
    uint32_t pid; /* in the PID namespace `pid_namespace` */
    uint32_t pad;
    uint64_t start_ticks;   /* field 22 of /proc/<pid>/stat */
    uint64_t pid_namespace; /* inode of /proc/<pid>/ns/pid; 0: unknown */
    uint64_t taken_ns;      /* CLOCK_MONOTONIC */
    uint8_t name[16];
    uint64_t modules; /* loaded modules and libraries */
    uint64_t unknown; /* entry points passed through unknown */
    uint64_t guessed[GS_CARDS]; /* bytes charged by estimate that a sample may correct: contexts, modules */
    uint64_t guessed_ns; /* CLOCK_MONOTONIC of the last such charge */
    uint8_t reserved[48];
    struct gs_lane lanes[GS_CARDS][GS_LANES];
    uint64_t exported[GS_CARDS]; /* bytes that other processes may map, charged here */
    uint64_t imported[GS_CARDS]; /* bytes of other processes that are mapped here, charged there */
    uint64_t managed[GS_CARDS];  /* bytes charged that may lie on the host */
    uint64_t underway[GS_CARDS]; /* bytes charged for calls under way: the driver may not have them yet */
    uint8_t tail[256];
};

struct gs_record {
    uint64_t sequence; /* index in the history + 1, written last; 0 while being written */
    uint64_t mono_ns;
    uint16_t kind; /* enum gs_breach */
    uint16_t card; /* index in the region; 0xffff: none */
    uint32_t pid;
    uint64_t requested;
    uint64_t used;
    uint64_t limit;
    uint32_t api; /* CRC-32 of the entry point's name */
    uint32_t pad;
    uint64_t spare;
};

struct gs_region {
    uint64_t magic;
    uint16_t major, minor;
    uint32_t header_bytes;
    uint64_t file_bytes;
    uint32_t card_offset, card_stride, card_count;
    uint32_t slot_offset, slot_stride, slot_count;
    uint32_t ring_offset, ring_stride, ring_length;
    uint32_t lane_count;
    uint64_t ring_head; /* records ever written */
    uint64_t ring_pad[7];
    uint32_t slots_high; /* slots at or above were never taken */
    uint32_t pad;
    uint64_t lock_offset;
    uint64_t limits_generation; /* obeyed last */
    uint8_t library[32];        /* version of the library that wrote last */
    uint8_t promise[64];
    uint8_t reserved[3848];
    struct gs_card cards[GS_CARDS];
    struct gs_slot slots[GS_SLOTS];
    struct gs_record ring[GS_RING];
};

_Static_assert(sizeof(struct gs_limit_card) == 128, "limit card");
_Static_assert(offsetof(struct gs_limits, generation) == 24, "limits body");
_Static_assert(offsetof(struct gs_limits, promise) == 48, "limits promise");
_Static_assert(offsetof(struct gs_limits, cards) == 256, "limits cards");
_Static_assert(sizeof(struct gs_limits) == 4096, "limits");
_Static_assert(sizeof(struct gs_feed_card) == 64, "feed card");
_Static_assert(offsetof(struct gs_feed, written_ns) == 24, "feed body");
_Static_assert(offsetof(struct gs_feed, cards) == 64, "feed cards");
_Static_assert(offsetof(struct gs_feed_card, memory_ns) == 40, "feed memory");
_Static_assert(sizeof(struct gs_feed) == 1088, "feed");
_Static_assert(offsetof(struct gs_card, paid_until_ns) == 64, "card bucket");
_Static_assert(offsetof(struct gs_card, uuid) == 128, "card uuid");
_Static_assert(sizeof(struct gs_card) == 256, "card");
_Static_assert(offsetof(struct gs_card, released_granules) == 176, "card released");
_Static_assert(offsetof(struct gs_slot, guessed) == 72, "slot guessed");
_Static_assert(offsetof(struct gs_slot, lanes) == 256, "slot lanes");
_Static_assert(offsetof(struct gs_slot, imported) == 1408, "slot imported");
_Static_assert(offsetof(struct gs_slot, underway) == 1664, "slot underway");
_Static_assert(sizeof(struct gs_slot) == 2048, "slot");
_Static_assert(sizeof(struct gs_record) == 64, "record");
_Static_assert(offsetof(struct gs_region, ring_head) == 64, "ring head");
_Static_assert(offsetof(struct gs_region, slots_high) == 128, "slots high");
_Static_assert(offsetof(struct gs_region, promise) == 184, "promise");
_Static_assert(offsetof(struct gs_region, cards) == 4096, "region cards");
_Static_assert(offsetof(struct gs_region, slots) == 8192, "region slots");
_Static_assert(sizeof(struct gs_region) == 8192 + 2048 * GS_SLOTS + 64 * GS_RING, "region");
_Static_assert(GS_SLOTS * GS_LANES == 1 << (GS_WORD_SEQ_SHIFT - GS_WORD_OWNER_SHIFT), "owner bits");

#endif
