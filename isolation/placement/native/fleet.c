/* SPDX-License-Identifier: Apache-2.0 */
/* The books of the fleet: take room, give it back, and say why there is none. See placement.h. */
#include "cards.h"

/* Take the room: 0, or -1 with nothing taken when a card, CPU, memory or pod slot is short.
 * `force` takes it all the same (a fleet found over-committed): free goes below 0 and reads as none. */
GS_API int32_t gs_take(const struct gs_fleet *f, const struct gs_ask *a, int32_t node, uint64_t mask,
                       int32_t force)
{
    if (!force && (f->cpu[node] < a->cpu || f->memory[node] < a->memory || f->pods[node] < 1))
        return -1;
    for (int32_t c = 0; !force && c < f->cards[node]; c++)
        if ((mask >> c & 1) && !card_fits(f, (int64_t)node * f->stride + c, a))
            return -1;
    f->cpu[node] -= a->cpu;
    f->memory[node] -= a->memory;
    f->pods[node] -= 1;
    for (int32_t c = 0; c < f->cards[node]; c++) {
        int64_t cell = (int64_t)node * f->stride + c;
        if (mask >> c & 1) {
            f->free[cell] -= a->whole ? f->offered[cell] : a->bytes;
            f->core[cell] -= a->whole ? 100 : a->core;
            f->offline[cell] += a->offline;
        }
    }
    f->version[node]++;
    return 0;
}

GS_API void gs_give(const struct gs_fleet *f, const struct gs_ask *a, int32_t node, uint64_t mask)
{
    f->cpu[node] += a->cpu;
    f->memory[node] += a->memory;
    f->pods[node] += 1;
    for (int32_t c = 0; c < f->cards[node]; c++) {
        int64_t cell = (int64_t)node * f->stride + c;
        if (mask >> c & 1) {
            f->free[cell] += a->whole ? f->offered[cell] : a->bytes;
            f->core[cell] += a->whole ? 100 : a->core;
            f->offline[cell] -= a->offline;
        }
    }
    f->version[node]++;
}

static void best_of(int64_t *best, int64_t value)
{
    if (value > *best)
        *best = value;
}

/* Why the cards of one node do not serve, and what they would; GS_NO_COUNT: they do. */
static int32_t why_cards(const struct gs_fleet *f, const struct gs_ask *a, int32_t node, uint64_t may,
                         struct gs_best *best)
{
    int32_t large = 0, fitting = 0, cards = 0;
    int64_t bytes = 0, core = 0, untouched = 0;
    for (int32_t c = 0; c < f->cards[node]; c++) {
        int64_t cell = (int64_t)node * f->stride + c;
        if (!(may >> c & 1))
            continue;
        cards++;
        large += f->offered[cell] > 0 && (a->whole || f->offered[cell] >= a->bytes);
        fitting += card_fits(f, cell, a);
        bytes += f->free[cell] > 0 ? f->free[cell] : 0;
        core += f->core[cell] > 0 ? f->core[cell] : 0;
        untouched += f->offered[cell] > 0 && f->free[cell] == f->offered[cell] && f->core[cell] == 100;
        best_of(&best->card_bytes, f->offered[cell]);
        best_of(&best->free_bytes, f->free[cell]);
        best_of(&best->core, f->core[cell]);
    }
    best_of(&best->cards, cards);
    best_of(&best->untouched, untouched);
    if (cards < a->cards)
        return GS_NO_TOO_FEW;
    if (large < a->cards)
        return GS_NO_TOO_SMALL;
    if (fitting >= a->cards)
        return GS_NO_COUNT;
    int sum = !a->whole && bytes >= a->bytes * a->cards && core >= (int64_t)a->core * a->cards;
    return sum ? GS_NO_FRAGMENTED : GS_NO_CARDS;
}

/* Why the node says no, and the best there is; GS_NO_COUNT: it would take the pod. */
static int32_t why_node(const struct gs_fleet *f, const struct gs_ask *a, const uint8_t *eligible,
                        const uint64_t *may, int32_t node, struct gs_best *best)
{
    if (!eligible[node])
        return GS_NO_GROUP;
    int32_t why = why_cards(f, a, node, may ? may[node] : ~0ull, best);
    if (why != GS_NO_COUNT)
        return why;
    best_of(&best->cpu, f->cpu[node]);
    best_of(&best->memory, f->memory[node]);
    return f->cpu[node] < a->cpu          ? GS_NO_CPU
           : f->memory[node] < a->memory ? GS_NO_MEMORY
           : f->pods[node] < 1           ? GS_NO_PODS
                                         : GS_NO_COUNT;
}

/* How many nodes say no and why (`counts[GS_NO_COUNT]`: would take it), and the best there is. */
GS_API void gs_why(const struct gs_fleet *f, const struct gs_ask *a, const uint8_t *eligible,
                   const uint64_t *may, int32_t *counts, struct gs_best *best)
{
    for (int32_t n = 0; n < f->nodes; n++)
        counts[why_node(f, a, eligible, may, n, best)]++;
}

GS_API void gs_say(const struct gs_fleet *f, const struct gs_ask *a, const uint8_t *eligible, const uint64_t *may,
                   const int32_t *node, int32_t count, uint8_t *no)
{
    struct gs_best unused = {0};
    for (int32_t i = 0; i < count; i++)
        no[i] = (uint8_t)why_node(f, a, eligible, may, node[i], &unused);
}

void gs_struct_sizes(int32_t size[6]) {
    size[0] = sizeof(struct gs_fleet);
    size[1] = sizeof(struct gs_mix);
    size[2] = sizeof(struct gs_policy);
    size[3] = sizeof(struct gs_ask);
    size[4] = sizeof(struct gs_row);
    size[5] = sizeof(struct gs_best);
}
