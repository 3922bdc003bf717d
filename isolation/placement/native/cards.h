/* SPDX-License-Identifier: Apache-2.0 */
/* One card: what is free of it, and whether a pod's part fits. Inlined into every loop over cards. */
#ifndef GPUSHARE_CARDS_H
#define GPUSHARE_CARDS_H

#include "placement.h"

#include <math.h>

static inline double least(double a, double b) { return a < b ? a : b; }

/* Part of the card that one share can still get. */
static inline double share_free(const struct gs_fleet *f, int64_t cell)
{
    if (f->free[cell] <= 0 || f->offered[cell] <= 0)
        return 0.0;
    double bytes = (double)f->free[cell] / (double)f->offered[cell];
    return least(bytes, (double)f->core[cell] / 100.0);
}

static inline double share_after(const struct gs_fleet *f, int64_t cell, const struct gs_ask *a)
{
    if (a->whole)
        return 0.0;
    double bytes = (double)(f->free[cell] - a->bytes) / (double)f->offered[cell];
    return least(bytes, (double)(f->core[cell] - a->core) / 100.0);
}

static inline int card_fits(const struct gs_fleet *f, int64_t cell, const struct gs_ask *a)
{
    if (a->whole)
        return f->offered[cell] > 0 && f->free[cell] == f->offered[cell] && f->core[cell] == 100;
    return f->free[cell] >= a->bytes && f->core[cell] >= a->core && f->offered[cell] > 0;
}

#endif
