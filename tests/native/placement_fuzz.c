/* SPDX-License-Identifier: Apache-2.0 */
/* Random fleets, mixes and pods through every entry point of the native placement code, for the
 * sanitizers. Checks what must hold whatever the numbers: what is taken comes back, nothing is
 * over-committed, a refused pod is refused for a reason. Usage: placement_fuzz SEED ROUNDS */
#include "placement.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NODES = 24, STRIDE = 8, SHAPES = 20, KINDS = 3, GROUPS = 4, HELD = 64 };

static uint64_t state;

static int32_t draw(int32_t below)
{
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    return (int32_t)((state >> 33) % (uint64_t)below);
}

#define CHECK(claim)                                                                               \
    do {                                                                                           \
        if (!(claim)) {                                                                            \
            fprintf(stderr, "%s:%d: not true: %s\n", __FILE__, __LINE__, #claim);                  \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

struct world {
    int64_t cpu[NODES], memory[NODES], offered[NODES * STRIDE], free[NODES * STRIDE];
    int32_t pods[NODES], cards[NODES], core[NODES * STRIDE], kind[NODES * STRIDE], offline[NODES * STRIDE];
    uint8_t choice[NODES], eligible[GROUPS * NODES];
    uint32_t version[NODES], seen[NODES], phi_seen[NODES];
    double mix_cpu[SHAPES], mix_memory[SHAPES], host_cpu[2], host_memory[2];
    int32_t mix_cards[SHAPES], mix_group[GROUPS], mix_end[GROUPS], order[KINDS * SHAPES];
    double popularity[SHAPES], need[KINDS * SHAPES], value[KINDS * (GS_PRICE_STEPS + 1)], host_popularity[2];
    double score[NODES], phi[NODES];
    uint64_t mask[NODES], may[GROUPS * NODES];
    struct gs_fleet fleet;
    struct gs_mix mix;
    struct gs_row row;
};

static void fill_fleet(struct world *w)
{
    static const int64_t sizes[KINDS] = {1000, 1600, 8000};
    for (int32_t n = 0; n < NODES; n++) {
        w->cpu[n] = draw(100000);
        w->memory[n] = draw(100000);
        w->pods[n] = draw(20);
        w->cards[n] = draw(STRIDE + 1);
        w->choice[n] = (uint8_t)draw(3);
        for (int32_t c = 0; c < STRIDE; c++) {
            int32_t k = draw(KINDS), cell = n * STRIDE + c;
            w->kind[cell] = k;
            w->offered[cell] = draw(12) ? sizes[k] : 0;
            w->free[cell] = w->offered[cell];
            w->core[cell] = 100;
            w->offline[cell] = 0;
        }
        for (int32_t g = 0; g < GROUPS; g++)
            w->eligible[g * NODES + n] = draw(4) > 0;
    }
}

static void fill_mix(struct world *w)
{
    int32_t size[SHAPES], singles = SHAPES - 4;
    double demand[SHAPES];
    for (int32_t m = 0; m < SHAPES; m++) {
        w->mix_cpu[m] = draw(20000);
        w->mix_memory[m] = draw(20000);
        w->mix_cards[m] = m < singles ? 1 : 2 + draw(6);
        w->popularity[m] = 1.0 / SHAPES;
        size[m] = 1 + draw(1000);
        demand[m] = 1 + draw(50);
        for (int32_t k = 0; k < KINDS; k++)
            w->need[k * SHAPES + m] = (SHAPES - m) / (double)(SHAPES - k); /* falling, above 1 in places */
    }
    for (int32_t k = 0; k < KINDS; k++) {
        for (int32_t m = 0; m < SHAPES; m++)
            w->order[k * SHAPES + m] = m;
        CHECK(gs_prices(SHAPES, size, demand, w->value + k * (GS_PRICE_STEPS + 1)) >= 0);
    }
    for (int32_t g = 0; g < GROUPS; g++) {
        w->mix_group[g] = g;
        w->mix_end[g] = (g + 1) * SHAPES / GROUPS;
    }
    for (int32_t i = 0; i < GROUPS * NODES; i++)
        w->may[i] = draw(2) ? ~0ull : (uint64_t)draw(1 << STRIDE);
    for (int32_t h = 0; h < 2; h++) {
        w->host_cpu[h] = draw(50000);
        w->host_memory[h] = draw(50000);
        w->host_popularity[h] = 0.1;
    }
    w->mix = (struct gs_mix){.shapes = SHAPES, .singles = singles, .kinds = KINDS, .segments = GROUPS, .capacity = NODES,
                             .cpu = w->mix_cpu, .memory = w->mix_memory, .cards = w->mix_cards,
                             .group = w->mix_group, .end = w->mix_end, .popularity = w->popularity, .need = w->need,
                             .order = w->order, .value = w->value, .eligible = w->eligible, .hosts = 2,
                             .may = draw(2) ? w->may : NULL,
                             .host_cpu = w->host_cpu, .host_memory = w->host_memory,
                             .host_popularity = w->host_popularity, .cpu_per_card = draw(2) ? 5000.0 : 0.0};
}

static void join(struct world *w)
{
    w->fleet = (struct gs_fleet){.nodes = NODES, .stride = STRIDE, .cpu = w->cpu, .memory = w->memory,
                                 .pods = w->pods, .cards = w->cards, .choice = w->choice,
                                 .offered = w->offered, .free = w->free, .core = w->core,
                                 .kind = w->kind, .offline = w->offline, .version = w->version};
    w->row = (struct gs_row){w->score, w->mask, w->seen, w->phi, w->phi_seen};
}

static struct gs_ask some_ask(void)
{
    struct gs_ask a = {.cpu = draw(20000), .memory = draw(20000), .bytes = 1 + draw(1800), .core = draw(3) ? 0 : draw(100),
                       .cards = draw(5), .whole = draw(4) == 0, .group = draw(GROUPS), .offline = draw(4) == 0};
    return a;
}

static const uint64_t *allowed(const struct world *w, const struct gs_ask *a)
{
    return w->mix.may ? w->mix.may + a->group * NODES : NULL;
}

/* Asked node by node, in any order and twice: the same reasons, and the same nodes that fit. */
static void ask_some(struct world *w, const struct gs_policy *p, const struct gs_ask *a, const int32_t *near,
                     const uint64_t *near_mask, const int32_t *counts)
{
    int32_t nodes[NODES + 1], again[GS_NO_COUNT + 1] = {0};
    uint8_t no[NODES + 1];
    for (int32_t n = 0; n < NODES; n++)
        nodes[n] = NODES - 1 - n;
    nodes[NODES] = draw(NODES);
    gs_say(&w->fleet, a, w->eligible + a->group * NODES, allowed(w, a), nodes, NODES + 1, no);
    gs_rate(&w->fleet, &w->mix, p, a, &w->row, near, near_mask, draw(3), nodes, NODES + 1);
    for (int32_t i = 0; i <= NODES; i++) {
        CHECK((no[i] == GS_NO_COUNT) == (w->score[nodes[i]] < INFINITY));
        CHECK(no[i] != GS_NO_COUNT || __builtin_popcountll(w->mask[nodes[i]]) == a->cards);
        again[no[i]] += i < NODES;
    }
    CHECK(memcmp(again, counts, sizeof again) == 0);
}

static void one_round(struct world *w)
{
    struct gs_ask held[HELD];
    int32_t at[HELD], count = 0;
    uint64_t masks[HELD];
    struct gs_policy p = {draw(5), 0, 1, 40, 4, 60, 0.1, 1e-9, draw(2) * 0.02, 100000, 8, state};
    fill_fleet(w);
    fill_mix(w);
    join(w);
    struct world before = *w;
    for (int32_t step = 0; step < HELD; step++) {
        struct gs_ask a = some_ask();
        int32_t near[2] = {draw(NODES / 2), NODES / 2 + draw(NODES / 2)}, counts[GS_NO_COUNT + 1] = {0};
        uint64_t near_mask[2] = {1, 3}, mask = 0;
        struct gs_best best = {0};
        for (int32_t n = 0; n < NODES; n++)
            w->seen[n] = w->version[n] - 1; /* another ask: nothing remembered */
        int32_t node = gs_pick(&w->fleet, &w->mix, &p, &a, &w->row, near, near_mask, draw(3), &mask);
        gs_why(&w->fleet, &a, w->eligible + a.group * NODES, allowed(w, &a), counts, &best);
        CHECK((node >= 0) == (counts[GS_NO_COUNT] > 0));
        ask_some(w, &p, &a, near, near_mask, counts);
        if (node < 0)
            continue;
        CHECK(__builtin_popcountll(mask) == a.cards);
        CHECK(!w->mix.may || (mask & ~allowed(w, &a)[node]) == 0);
        CHECK(gs_take(&w->fleet, &a, node, mask, 0) == 0);
        held[count] = a, at[count] = node, masks[count++] = mask;
        for (int32_t i = 0; i < NODES * STRIDE; i++)
            CHECK(w->free[i] >= 0 && w->core[i] >= 0);
        double idle, lost = gs_fragment(&w->fleet, &w->mix, &idle);
        CHECK(lost >= -1e-9 && lost <= idle + 1e-9);
    }
    while (count-- > 0)
        gs_give(&w->fleet, &held[count], at[count], masks[count]);
    CHECK(memcmp(before.free, w->free, sizeof w->free) == 0 && memcmp(before.core, w->core, sizeof w->core) == 0);
    CHECK(memcmp(before.cpu, w->cpu, sizeof w->cpu) == 0 && memcmp(before.pods, w->pods, sizeof w->pods) == 0);
}

int main(int argc, char **argv)
{
    static struct world w;
    state = argc > 1 ? strtoull(argv[1], NULL, 10) : 1;
    for (int32_t round = argc > 2 ? atoi(argv[2]) : 100; round > 0; round--)
        one_round(&w);
    puts("ok");
    return 0;
}
