/* SPDX-License-Identifier: Apache-2.0 */
/* Which node, which cards: scores by potential, one node at a time. See placement.h.
 *
 * A pod goes where the potential PHI falls most. PHI of a node, in cards:
 *
 *   fragment * F        F: idle cards that a pod drawn from the mix could not use here
 *                       (Weng et al., "Beware of Fragmentation", USENIX ATC'23, section 4)
 *   price    * sum over cards (free - value(free))   what bin packing cannot sell any more
 *   strand   * max(0, free cards - free CPU / CPU per card)   cards without CPU beside them
 *   mismatch * free cards * part of the mix that may not run here
 *   host     * free CPU, in cards, * part of the mix without cards that it is too small for
 *
 * Before all of this, online pods go to cards without offline ones, and offline pods to cards that have some. Where
 * no pod is offline that changes nothing.
 */
#include "cards.h"

/* Breaks ties towards the fuller node and the tighter card; in cards, far below any real gain. */
#define EPSILON 1e-9
/* For or against a card with offline pods, in cards: above any potential. */
#define APART 1e6

/* What speaks against a card, or for it, because of the offline pods on it. */
static double apart(const struct gs_fleet *f, const struct gs_ask *a, int64_t cell)
{
    return f->offline[cell] <= 0 ? 0.0 : a->offline ? -APART : APART;
}

static int cards_fit(const struct gs_fleet *f, const struct gs_ask *a, int32_t node, uint64_t may)
{
    int32_t fitting = 0;
    for (int32_t c = 0; c < f->cards[node] && fitting < a->cards; c++)
        fitting += (int)(may >> c & 1) & card_fits(f, (int64_t)node * f->stride + c, a);
    return fitting >= a->cards;
}

/* A node during one evaluation: which shapes its CPU, memory and rules still allow. */
struct view {
    int32_t cards;
    int32_t kind[GS_MAX_CARDS];
    double share[GS_MAX_CARDS];
    double allowed[GS_MAX_SHAPES]; /* popularity where the node could run the shape, else 0 */
    double barred;                 /* popularity of the rest */
    double strangers;              /* of these, what the rules keep off the node for ever */
    int32_t summed;                /* size class that `lacking` is for, or -1 */
    double lacking[GS_MAX_SHAPES + 1]; /* [i] popularity of the i neediest allowed single-card shapes */
    double idle;                       /* sum of `share` */
    double below[GS_MAX_SHAPES];       /* [m] of a shape for several cards: sum of shares too small for it */
    int32_t serving[GS_MAX_SHAPES];    /* [m] cards large enough for it */
};

static void allow(struct view *v, const struct gs_mix *x, int32_t node, int64_t cpu, int64_t memory)
{
    double have_cpu = (double)cpu, have_memory = (double)memory, allowed = 0.0, strangers = 0.0, all = 0.0;
    int32_t m = 0;
    for (int32_t s = 0; s < x->segments; s++) {
        int may = x->eligible[(int64_t)x->group[s] * x->capacity + node];
        double segment = 0.0, fitting = 0.0;
        /* without a branch: which shapes still fit is as good as random to the predictor */
        for (; m < x->end[s]; m++) {
            double popularity = x->popularity[m];
            int ok = (have_cpu >= x->cpu[m]) & (have_memory >= x->memory[m]) & may;
            v->allowed[m] = ok ? popularity : 0.0;
            segment += popularity;
            fitting += v->allowed[m];
        }
        all += segment;
        allowed += fitting;
        strangers += may ? 0.0 : segment;
    }
    v->barred = all - allowed;
    v->strangers = strangers;
    v->summed = -1;
}

/* Popularity of the allowed single-card shapes that do not fit into `share`. */
static double lacking(struct view *v, const struct gs_mix *x, int32_t kind, double share)
{
    const double *need = x->need + (int64_t)kind * x->shapes;
    const int32_t *order = x->order + (int64_t)kind * x->shapes;
    int32_t low = 0, high = x->singles;
    if (v->summed != kind) {
        v->lacking[0] = 0.0;
        for (int32_t i = 0; i < x->singles; i++)
            v->lacking[i + 1] = v->lacking[i] + v->allowed[order[i]];
        v->summed = kind;
    }
    while (low < high) { /* first shape in falling order of need that fits */
        int32_t middle = (low + high) / 2;
        if (need[order[middle]] > share)
            low = middle + 1;
        else
            high = middle;
    }
    return v->lacking[low];
}

/* What one card adds to PHI by itself. */
static double card_term(struct view *v, const struct gs_mix *x, const struct gs_policy *p,
                        int32_t kind, double share)
{
    if (share <= 0.0)
        return 0.0;
    double term = 0.0;
    if (p->fragment != 0.0)
        term += p->fragment * share * (v->barred + lacking(v, x, kind, share));
    if (p->price != 0.0) {
        const double *value = x->value + (int64_t)kind * (GS_PRICE_STEPS + 1);
        term += p->price * (share - value[(int32_t)(share * GS_PRICE_STEPS + 1e-6)]);
    }
    return term;
}

/* Count the node's cards for the shapes that want several. */
static void count_teams(struct view *v, const struct gs_mix *x)
{
    v->idle = 0.0;
    for (int32_t c = 0; c < v->cards; c++)
        v->idle += v->share[c];
    for (int32_t i = x->singles; i < x->shapes; i++) {
        int32_t m = x->order[i], serving = 0;
        double below = 0.0;
        for (int32_t c = 0; c < v->cards; c++) {
            int small = v->share[c] < x->need[(int64_t)v->kind[c] * x->shapes + m];
            below += small * v->share[c];
            serving += !small;
        }
        v->below[m] = below;
        v->serving[m] = serving;
    }
}

/* What the shapes that want several cards add: all idle cards if too few can serve, else the rest.
 * With `c` >= 0 card `c` is taken to have `share` left. */
static double team_term(const struct view *v, const struct gs_mix *x, const struct gs_policy *p, int32_t c,
                        double share)
{
    double sum = 0.0, now = c >= 0 ? v->share[c] : 0.0;
    for (int32_t i = x->singles; i < x->shapes; i++) {
        int32_t m = x->order[i], serving = v->serving[m];
        double idle = v->idle, below = v->below[m];
        if (v->allowed[m] == 0.0)
            continue;
        if (c >= 0) {
            double need = x->need[(int64_t)v->kind[c] * x->shapes + m];
            idle += share - now;
            below += (share < need ? share : 0.0) - (now < need ? now : 0.0);
            serving += (share >= need) - (now >= need);
        }
        sum += v->allowed[m] * (serving >= x->cards[m] ? below : idle);
    }
    return p->fragment * sum;
}

/* What depends on the node's free cards as a sum, and on its free CPU. */
static double node_term(const struct view *v, const struct gs_mix *x, const struct gs_policy *p,
                        int64_t cpu, int64_t memory)
{
    double term = 0.0;
    if (p->strand != 0.0 && x->cpu_per_card > 0.0) {
        double stranded = v->idle - (double)cpu / x->cpu_per_card;
        term += stranded > 0.0 ? p->strand * stranded : 0.0;
    }
    term += p->mismatch * v->idle * v->strangers;
    if (p->host != 0.0 && x->cpu_per_card > 0.0) {
        double lost = 0.0;
        for (int32_t h = 0; h < x->hosts; h++)
            lost += (((double)cpu < x->host_cpu[h]) | ((double)memory < x->host_memory[h])) *
                    x->host_popularity[h];
        term += p->host * lost * (double)cpu / x->cpu_per_card;
    }
    return term;
}

static void look(struct view *v, const struct gs_fleet *f, int32_t node)
{
    v->cards = f->cards[node];
    for (int32_t c = 0; c < v->cards; c++) {
        int64_t cell = (int64_t)node * f->stride + c;
        v->kind[c] = f->kind[cell];
        v->share[c] = share_free(f, cell);
    }
}

static double phi(struct view *v, const struct gs_mix *x, const struct gs_policy *p, int64_t cpu,
                  int64_t memory)
{
    double sum = team_term(v, x, p, -1, 0.0);
    for (int32_t c = 0; c < v->cards; c++)
        sum += card_term(v, x, p, v->kind[c], v->share[c]);
    return sum + node_term(v, x, p, cpu, memory);
}

static double phi_before(const struct gs_fleet *f, const struct gs_mix *x, const struct gs_policy *p,
                         const struct gs_row *r, int32_t node, struct view *v)
{
    if (r->phi_version[node] != f->version[node]) {
        allow(v, x, node, f->cpu[node], f->memory[node]);
        r->phi[node] = phi(v, x, p, f->cpu[node], f->memory[node]);
        r->phi_version[node] = f->version[node];
    }
    return r->phi[node];
}

/* Order the fitting cards by `key` (stable, smallest first) and return the first `want` as a mask. */
static uint64_t first_cards(int32_t fitting, const int32_t *card, const double *key, int32_t want)
{
    uint64_t mask = 0;
    for (int32_t k = 0; k < want; k++) {
        int32_t best = -1;
        for (int32_t i = 0; i < fitting; i++)
            if (!(mask >> card[i] & 1) && (best < 0 || key[i] < key[best]))
                best = i;
        mask |= 1ull << card[best];
    }
    return mask;
}

/* What PHI gains when card `c` falls to `after`; a tie goes to the tightest card. */
static double card_delta(const struct gs_mix *x, const struct gs_policy *p, struct view *v, int32_t c,
                         double after)
{
    double now = v->share[c];
    double delta = card_term(v, x, p, v->kind[c], after) - card_term(v, x, p, v->kind[c], now);
    if (x->singles < x->shapes && p->fragment != 0.0)
        delta += team_term(v, x, p, c, after) - team_term(v, x, p, -1, 0.0);
    return delta + EPSILON * now;
}

/* Which cards of a node the ask takes; enough of `may` fit. `near`: cards that hold a replica. */
static uint64_t choose(const struct gs_fleet *f, const struct gs_mix *x, const struct gs_policy *p,
                       const struct gs_ask *a, int32_t node, uint64_t may, uint64_t near, struct view *v)
{
    int32_t card[GS_MAX_CARDS], fitting = 0;
    double key[GS_MAX_CARDS];
    for (int32_t c = 0; c < v->cards; c++)
        if ((may >> c & 1) && card_fits(f, (int64_t)node * f->stride + c, a))
            card[fitting++] = c;
    int spread = f->choice[node] == GS_CHOICE_SPREAD ||
                 (f->choice[node] == GS_CHOICE_POLICY && p->rank == GS_RANK_SPREAD);
    int priced = f->choice[node] == GS_CHOICE_POLICY && p->rank == GS_RANK_POTENTIAL;
    for (int32_t i = 0; i < fitting; i++) {
        int32_t c = card[i];
        if (spread)
            key[i] = (near >> c & 1 ? 2.0 : 0.0) - v->share[c];
        else if (!priced)
            key[i] = v->share[c];
        else if (i > 0 && v->share[card[i - 1]] == v->share[c] && v->kind[card[i - 1]] == v->kind[c])
            key[i] = key[i - 1];
        else
            key[i] = card_delta(x, p, v, c, share_after(f, (int64_t)node * f->stride + c, a));
    }
    for (int32_t i = 0; i < fitting; i++)
        key[i] += apart(f, a, (int64_t)node * f->stride + card[i]);
    return first_cards(fitting, card, key, a->cards);
}

static uint64_t mix_bits(uint64_t z)
{
    /* splitmix64's finaliser (Steele, Lea, Flood, OOPSLA 2014) */
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}

/* Score of `node` for the ask (smaller is better) and the cards to take; INFINITY: does not fit. */
static double rate(const struct gs_fleet *f, const struct gs_mix *x, const struct gs_policy *p,
                   const struct gs_ask *a, const struct gs_row *r, int32_t node, uint64_t near,
                   uint64_t *mask)
{
    struct view v;
    int64_t place = (int64_t)a->group * x->capacity + node;
    uint64_t may = x->may ? x->may[place] : ~0ull;
    *mask = 0;
    if (!x->eligible[place] || f->cpu[node] < a->cpu || f->memory[node] < a->memory || f->pods[node] < 1 ||
        !cards_fit(f, a, node, may))
        return INFINITY;
    look(&v, f, node);
    count_teams(&v, x);
    int64_t cpu = f->cpu[node] - a->cpu;
    double before = 0.0, gain;
    if (p->rank == GS_RANK_POTENTIAL) {
        before = phi_before(f, x, p, r, node, &v);
        allow(&v, x, node, cpu, f->memory[node] - a->memory);
    }
    *mask = choose(f, x, p, a, node, may, near, &v);
    double mixed = 0.0;
    for (int32_t c = 0; c < v.cards; c++)
        if (*mask >> c & 1) {
            v.share[c] = share_after(f, (int64_t)node * f->stride + c, a);
            mixed += apart(f, a, (int64_t)node * f->stride + c);
        }
    count_teams(&v, x);
    double width = v.cards > 0 ? (double)v.cards : 1.0;
    switch (p->rank) {
    case GS_RANK_POTENTIAL:
        gain = phi(&v, x, p, cpu, f->memory[node] - a->memory) - before;
        if (p->grain > 0.0 && a->cards > 0)
            gain = ceil(gain / p->grain - 1e-9) * p->grain;
        return mixed + gain + (a->cards > 0 ? EPSILON : p->tie) * v.idle;
    case GS_RANK_BINPACK:
        return mixed + v.idle / width + 1e-9 * (double)cpu;
    case GS_RANK_SPREAD:
        return mixed - v.idle / width + (near ? 2.0 : 0.0) - 1e-12 * (double)cpu;
    case GS_RANK_RANDOM:
        return (double)(mix_bits(p->salt + (uint64_t)node * 0x9e3779b97f4a7c15ull) >> 11);
    default: /* best fit: what is left, CPU and cards alike, in parts of the largest node */
        return mixed + 0.5 * (double)cpu / p->cpu_span + 0.5 * v.idle / p->card_span;
    }
}

/* Bring one node's remembered answer up to date. */
static void answer(const struct gs_fleet *f, const struct gs_mix *x, const struct gs_policy *p,
                   const struct gs_ask *a, const struct gs_row *r, int32_t node)
{
    if (r->version[node] != f->version[node]) {
        r->score[node] = rate(f, x, p, a, r, node, 0, &r->mask[node]);
        r->version[node] = f->version[node];
    }
}

/* Replicas of the pod's owner change a spread node's answer for this owner alone: such nodes are
 * passed over first, then rated afresh and not remembered. */
static void pass_over(const struct gs_fleet *f, const struct gs_row *r, const int32_t *near, int32_t near_count)
{
    for (int32_t i = 0; i < near_count; i++)
        r->version[near[i]] = f->version[near[i]];
}

static void answer_near(const struct gs_fleet *f, const struct gs_mix *x, const struct gs_policy *p,
                        const struct gs_ask *a, const struct gs_row *r, const int32_t *near,
                        const uint64_t *near_mask, int32_t near_count)
{
    for (int32_t i = 0; i < near_count; i++) {
        int32_t n = near[i];
        r->score[n] = rate(f, x, p, a, r, n, near_mask[i], &r->mask[n]);
        r->version[n] = f->version[n] - 1;
    }
}

GS_API int32_t gs_pick(const struct gs_fleet *f, const struct gs_mix *x, const struct gs_policy *p,
                       const struct gs_ask *a, const struct gs_row *r, const int32_t *near,
                       const uint64_t *near_mask, int32_t near_count, uint64_t *mask)
{
    int32_t best = -1;
    double lowest = INFINITY;
    pass_over(f, r, near, near_count);
    for (int32_t n = 0; n < f->nodes; n++)
        answer(f, x, p, a, r, n);
    answer_near(f, x, p, a, r, near, near_mask, near_count);
    for (int32_t n = 0; n < f->nodes; n++)
        if (r->score[n] < lowest) {
            lowest = r->score[n];
            best = n;
        }
    if (best >= 0)
        *mask = r->mask[best];
    return best;
}

GS_API void gs_rate(const struct gs_fleet *f, const struct gs_mix *x, const struct gs_policy *p,
                    const struct gs_ask *a, const struct gs_row *r, const int32_t *near,
                    const uint64_t *near_mask, int32_t near_count, const int32_t *node, int32_t count)
{
    pass_over(f, r, near, near_count);
    for (int32_t i = 0; i < count; i++)
        answer(f, x, p, a, r, node[i]);
    answer_near(f, x, p, a, r, near, near_mask, near_count);
}

/* Cards that are idle, and the part of them that the mix could not use (FGD's measure), in cards. */
GS_API double gs_fragment(const struct gs_fleet *f, const struct gs_mix *x, double *idle)
{
    const struct gs_policy only = {.rank = GS_RANK_POTENTIAL, .fragment = 1.0};
    struct view v;
    double sum = 0.0;
    *idle = 0.0;
    for (int32_t n = 0; n < f->nodes; n++) {
        look(&v, f, n);
        count_teams(&v, x);
        allow(&v, x, n, f->cpu[n], f->memory[n]);
        sum += phi(&v, x, &only, f->cpu[n], f->memory[n]);
        *idle += v.idle;
    }
    return sum;
}
