/* SPDX-License-Identifier: Apache-2.0 */
/* What a remainder of a card can still be sold for.
 *
 * Prices are the duals of "pack the workload's shares into as few cards as possible":
 *     min sum_j x_j   s.t.  sum_j a_ij x_j >= demand_i,  x >= 0
 * over all patterns j that fit one card, by column generation (Gilmore and Gomory, "A linear
 * programming approach to the cutting-stock problem", Operations Research 9, 1961): a dense
 * revised simplex over the sizes, an unbounded knapsack as the pricing problem.
 */
#include "placement.h"

#define SIZES 32
#define ROUNDS 400 /* far above what 32 sizes need; a bound against cycling, not a target */
#define TINY 1e-9

struct tableau {
    int32_t n;
    double inverse[SIZES][SIZES]; /* of the basis */
    double level[SIZES];          /* value of each basic column */
    double cost[SIZES];           /* 1: a pattern, 0: a surplus */
    double price[SIZES];          /* dual of each size */
};

static void reprice(struct tableau *t)
{
    for (int32_t i = 0; i < t->n; i++) {
        t->price[i] = 0.0;
        for (int32_t k = 0; k < t->n; k++)
            t->price[i] += t->cost[k] * t->inverse[k][i];
    }
}

/* Best pattern for the prices: its value, and how often each size stands in it. */
static double best_pattern(const struct tableau *t, const int32_t *size, double *pattern)
{
    double best[GS_PRICE_STEPS + 1] = {0.0};
    int32_t last[GS_PRICE_STEPS + 1];
    last[0] = -1;
    for (int32_t room = 1; room <= GS_PRICE_STEPS; room++) {
        best[room] = best[room - 1];
        last[room] = -1;
        for (int32_t i = 0; i < t->n; i++)
            if (size[i] <= room && best[room - size[i]] + t->price[i] > best[room] + TINY) {
                best[room] = best[room - size[i]] + t->price[i];
                last[room] = i;
            }
    }
    for (int32_t i = 0; i < t->n; i++)
        pattern[i] = 0.0;
    for (int32_t room = GS_PRICE_STEPS; room > 0;) {
        int32_t i = last[room];
        if (i < 0) {
            room--;
            continue;
        }
        pattern[i] += 1.0;
        room -= size[i];
    }
    return best[GS_PRICE_STEPS];
}

/* Bring `column` into the basis; 0 when nothing can leave. */
static int pivot(struct tableau *t, const double *column, double cost)
{
    double along[SIZES], step = 0.0;
    int32_t leaves = -1;
    for (int32_t k = 0; k < t->n; k++) {
        along[k] = 0.0;
        for (int32_t i = 0; i < t->n; i++)
            along[k] += t->inverse[k][i] * column[i];
        if (along[k] > TINY && (leaves < 0 || t->level[k] / along[k] < step)) {
            step = t->level[k] / along[k];
            leaves = k;
        }
    }
    if (leaves < 0)
        return 0;
    for (int32_t i = 0; i < t->n; i++)
        t->inverse[leaves][i] /= along[leaves];
    for (int32_t k = 0; k < t->n; k++) {
        if (k == leaves)
            continue;
        t->level[k] -= step * along[k];
        for (int32_t i = 0; i < t->n; i++)
            t->inverse[k][i] -= along[k] * t->inverse[leaves][i];
    }
    t->level[leaves] = step;
    t->cost[leaves] = cost;
    return 1;
}

static int improve(struct tableau *t, const int32_t *size)
{
    double column[SIZES];
    int32_t worst = 0;
    reprice(t);
    for (int32_t i = 1; i < t->n; i++)
        if (t->price[i] < t->price[worst])
            worst = i;
    if (t->price[worst] < -TINY) {
        for (int32_t i = 0; i < t->n; i++)
            column[i] = i == worst ? -1.0 : 0.0;
        return pivot(t, column, 0.0);
    }
    return best_pattern(t, size, column) > 1.0 + 1e-7 && pivot(t, column, 1.0);
}

/* `size`: thousandths of a card (1..1000), `demand`: how many of each are asked; at most 32 sizes.
 * Fills `value[GS_PRICE_STEPS + 1]`: never above the remainder itself, 1 for an empty card.
 * Returns the rounds it took, -1 for more sizes than it takes. */
GS_API int32_t gs_prices(int32_t sizes, const int32_t *size, const double *demand, double *value)
{
    struct tableau t = {.n = sizes};
    int32_t rounds = 0;
    if (sizes < 0 || sizes > SIZES)
        return -1;
    for (int32_t i = 0; i < sizes; i++) {
        double each = (double)(GS_PRICE_STEPS / size[i]);
        t.inverse[i][i] = 1.0 / each;
        t.level[i] = demand[i] / each;
        t.cost[i] = 1.0;
    }
    while (rounds < ROUNDS && improve(&t, size))
        rounds++;
    reprice(&t);
    value[0] = 0.0;
    for (int32_t room = 1; room <= GS_PRICE_STEPS; room++) {
        value[room] = value[room - 1];
        for (int32_t i = 0; i < sizes; i++)
            if (size[i] <= room && value[room - size[i]] + t.price[i] > value[room])
                value[room] = value[room - size[i]] + t.price[i];
    }
    for (int32_t room = 1; room <= GS_PRICE_STEPS; room++) {
        double itself = (double)room / GS_PRICE_STEPS;
        if (value[room] > itself)
            value[room] = itself;
    }
    value[GS_PRICE_STEPS] = 1.0;
    return rounds;
}
