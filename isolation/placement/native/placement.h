/* SPDX-License-Identifier: Apache-2.0 */
/* Native placement: which node and cards a pod takes, over plain arrays.
 *
 * The caller owns every array; this code allocates nothing, keeps no state of its own and
 * never fails: out-of-range input is the caller's bug and is checked in Python
 * (isolation/placement/native.py mirrors these structs field by field).
 *
 * Units: CPU in milli-cores, memory in bytes, compute in percent of a card, and every "share"
 * or "need" a fraction 0..1 of one card (the larger of its memory and its compute fraction).
 */
#ifndef GPUSHARE_PLACEMENT_H
#define GPUSHARE_PLACEMENT_H

#include <stdint.h>

#define GS_API __attribute__((visibility("default")))
#define GS_MAX_CARDS 64    /* cards of a node: one bit each in a mask */
#define GS_MAX_SHAPES 128  /* shapes of the workload mix */
#define GS_PRICE_STEPS 1000 /* price tables are in thousandths of a card */

enum gs_choice { GS_CHOICE_POLICY, GS_CHOICE_BINPACK, GS_CHOICE_SPREAD };
enum gs_rank { GS_RANK_POTENTIAL, GS_RANK_BEST_FIT, GS_RANK_BINPACK, GS_RANK_SPREAD, GS_RANK_RANDOM };

/* What is free, one row per node, `stride` card cells per row. */
struct gs_fleet {
    int32_t nodes;
    int32_t stride;
    int64_t *cpu;      /* free milli-cores */
    int64_t *memory;   /* free bytes */
    int32_t *pods;     /* free pod slots */
    int32_t *cards;    /* cards of the node */
    uint8_t *choice;   /* enum gs_choice */
    int64_t *offered;  /* [cell] bytes when empty */
    int64_t *free;     /* [cell] bytes free; 0 on an unhealthy card */
    int32_t *core;     /* [cell] percent free */
    int32_t *kind;     /* [cell] index of the card's size class */
    int32_t *offline;  /* [cell] offline pods on the card */
    uint32_t *version; /* changes whenever the row does */
};

/* The workload as learnt so far. Arrays by shape m, shapes alike in group g stand together in
 * segment s; tables by size class k. */
struct gs_mix {
    int32_t shapes;
    int32_t singles;    /* shapes that ask for one card */
    int32_t kinds;
    int32_t segments;
    int64_t capacity;   /* row length of `eligible` */
    double *cpu;        /* [m] milli-cores; doubles, so that the compiler compares several at once */
    double *memory;     /* [m] bytes */
    int32_t *cards;     /* [m] cards asked, >= 1 */
    double *popularity; /* [m] part of all card-asking pods, sums to 1 */
    int32_t *group;     /* [s] row of `eligible` */
    int32_t *end;       /* [s] first shape after the segment */
    double *need;       /* [k][m] part of a card, > 1 where it can never fit */
    int32_t *order;     /* [k][m] single-card shapes by need, largest first; then the others */
    double *value;      /* [k][GS_PRICE_STEPS + 1] what a remainder can still be sold for */
    uint8_t *eligible;  /* [group][node] */
    uint64_t *may;      /* [group][node] cards that the group may use; NULL: all of every node */
    int32_t hosts;      /* shapes without cards */
    int32_t pad;
    double *host_cpu;        /* [h] */
    double *host_memory;     /* [h] */
    double *host_popularity; /* [h] per card-asking pod */
    double cpu_per_card; /* milli-cores that one sold card is expected to need; 0: unknown */
};

struct gs_policy {
    int32_t rank; /* enum gs_rank */
    int32_t pad;
    double fragment, price, strand, mismatch, host; /* weights of PHI */
    double tie;   /* of a pod without cards, towards the node with fewer idle cards */
    double grain; /* gains of pods with cards are rounded up to this; 0: not at all */
    double cpu_span, card_span; /* best fit: CPU and cards of the largest node */
    uint64_t salt;              /* GS_RANK_RANDOM: the draw */
};

struct gs_ask {
    int64_t cpu, memory, bytes; /* bytes per card */
    int32_t core;               /* percent per card */
    int32_t cards, whole, group;
    int32_t offline; /* 1: the pod computes in what others leave */
    int32_t pad;
};

/* One cached row: the answer of every node to one ask. */
struct gs_row {
    double *score;     /* [node] smaller is better; INFINITY: does not fit */
    uint64_t *mask;    /* [node] cards to take */
    uint32_t *version; /* [node] of the fleet row that the answer is for */
    double *phi;       /* [node] potential before the pod, shared by all rows */
    uint32_t *phi_version;
};

/* Why nodes say no, most static first; the index is mirrored in native.py. */
enum gs_no {
    GS_NO_GROUP,      /* mode, rules or readiness: Python tells them apart */
    GS_NO_TOO_FEW,    /* fewer cards than asked */
    GS_NO_TOO_SMALL,  /* too few cards that could hold it when empty */
    GS_NO_CARDS,      /* full, as a sum too */
    GS_NO_FRAGMENTED, /* room as a sum, not on single cards */
    GS_NO_CPU,
    GS_NO_MEMORY,
    GS_NO_PODS,
    GS_NO_COUNT
};

/* The best there is on the nodes that the pod may use, for advice; fill with zeros first. */
struct gs_best {
    int64_t card_bytes; /* what the largest card offers when empty */
    int64_t free_bytes; /* free on the card with most room */
    int64_t core;       /* percent free on the card with most */
    int64_t cards;      /* cards of the largest node */
    int64_t untouched;  /* empty cards of one node */
    int64_t cpu;        /* free milli-cores where the cards would do */
    int64_t memory;     /* free bytes there */
};

GS_API int32_t gs_pick(const struct gs_fleet *, const struct gs_mix *, const struct gs_policy *,
                       const struct gs_ask *, const struct gs_row *, const int32_t *near,
                       const uint64_t *near_mask, int32_t near_count, uint64_t *mask);
/* The same for `count` nodes alone: their answers in the row are those of this moment. */
GS_API void gs_rate(const struct gs_fleet *, const struct gs_mix *, const struct gs_policy *,
                    const struct gs_ask *, const struct gs_row *, const int32_t *near,
                    const uint64_t *near_mask, int32_t near_count, const int32_t *node, int32_t count);
GS_API int32_t gs_take(const struct gs_fleet *, const struct gs_ask *, int32_t node, uint64_t mask,
                       int32_t force);
GS_API void gs_give(const struct gs_fleet *, const struct gs_ask *, int32_t node, uint64_t mask);
/* `may`: [node] cards that the pod may use; NULL: all. */
GS_API void gs_why(const struct gs_fleet *, const struct gs_ask *, const uint8_t *eligible, const uint64_t *may,
                   int32_t *counts, struct gs_best *);
/* Why each of these nodes says no, by enum gs_no; GS_NO_COUNT: it would take the pod. */
GS_API void gs_say(const struct gs_fleet *, const struct gs_ask *, const uint8_t *eligible, const uint64_t *may,
                   const int32_t *node, int32_t count, uint8_t *no);
GS_API double gs_fragment(const struct gs_fleet *, const struct gs_mix *, double *idle);
GS_API int32_t gs_prices(int32_t sizes, const int32_t *size, const double *demand, double *value);
/* Bytes of each struct above, in their order: an object built from other sources is noticed when it is loaded. */
GS_API void gs_struct_sizes(int32_t size[6]);

#endif
