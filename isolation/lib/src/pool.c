/* SPDX-License-Identifier: Apache-2.0 */
#include "pool.h"

#include <fcntl.h>

#include "charge.h"
#include "spin.h"
#include "symbols.h"

#define POOLS 64
#define GROWTH (32 * GS_MIB) /* what pools were seen to grow by; a wrong figure costs a look at the edge */
#define EDGE_TRIES 40        /* of 250 us: how long a call waits for another one at the edge */

static struct gs_pool pools[POOLS];
static uint32_t count, lock; /* places ever used */
static uint32_t graphs;      /* 1 once a graph may hold memory */
static uint64_t numbers;

static void enter(void) { gs_spin_enter(&lock); }
static void leave(void) { gs_spin_leave(&lock); }

static uint64_t whole(uint64_t bytes, uint64_t granule)
{
    return bytes > UINT64_MAX - granule ? bytes : (bytes + granule - 1) / granule * granule;
}

/* What the driver says of a pool: reserved bytes, or those handed out of them; `otherwise` where it
 * cannot be asked. */
static uint64_t figure(const struct gs_pool *p, int handed, uint64_t otherwise)
{
    uint64_t now = 0;
    if (p->destroyed)
        return otherwise; /* nobody can ask any more */
    CUresult rc = p->pool ? GS_REAL(cuMemPoolGetAttribute)(p->pool, handed ? CU_POOL_USED_CURRENT
                                                                           : CU_POOL_RESERVED_CURRENT, &now)
                          : GS_REAL(cuDeviceGetGraphMemAttribute)(p->device, handed ? CU_GRAPH_USED
                                                                                    : CU_GRAPH_RESERVED, &now);
    return rc == CUDA_SUCCESS ? now : otherwise;
}

static uint64_t reserved(const struct gs_pool *p)
{
    return gs_granules(figure(p, 0, p->charged)) * GS_GRANULE;
}

/* The pool's place in our list, made where it is new; NULL where the list is full. Places never move. */
struct gs_pool *gs_pool_of(CUpool pool, CUdevice device, int card)
{
    struct gs_pool *room = NULL, *known = NULL;
    enter();
    for (uint32_t i = 0; i < count && !known; i++) {
        struct gs_pool *p = &pools[i];
        if (p->number && !p->destroyed && p->pool == pool && (pool || p->device == device))
            known = p;
        if (!p->number && !room)
            room = p;
    }
    if (!known && !room && count < POOLS) {
        room = &pools[count];
        __atomic_store_n(&count, count + 1, __ATOMIC_RELEASE);
    }
    if (!known && room)
        *room = (struct gs_pool){.number = ++numbers, .pool = pool, .device = device, .card = card};
    if (!pool)
        __atomic_store_n(&graphs, 1, __ATOMIC_RELEASE);
    leave();
    return known ? known : room;
}

/* The pool that a launch takes memory from, and how much; NULL where it takes none. */
struct gs_pool *gs_graph_pool(CUgraphExec exec, uint64_t *bytes)
{
    struct gs_entry entry;
    if (!gs_managed() || gs_table_get((uint64_t)exec, GS_KIND_EXEC, &entry) < 0)
        return NULL;
    *bytes = entry.bytes;
    return gs_pool_of(NULL, (CUdevice)entry.extra, entry.card);
}

/* Charge what the pool has reserved now, of which `guess` bytes are charged already and more may be
 * covered by the guesses of calls under way. 0, or -1 with nothing changed where that passes the
 * promise. pre: entered. */
static int true_up(struct gs_pool *p, uint64_t guess)
{
    uint64_t now = reserved(p), have = p->charged + guess, others = p->guessed - guess;
    if (now > have + others && gs_try_charge(p->card, now - have - others) < 0)
        return -1;
    if (now < have)
        gs_uncharge(p->card, have - now);
    p->charged = now < have ? now : now > have + others ? now - others : have;
    p->guessed = others;
    return 0;
}

/* Let the driver take back what the pool does not use: not from under a launch that counts on it. pre: entered. */
static void trim(const struct gs_pool *p)
{
    if (p->pool)
        GS_REAL(cuMemPoolTrimTo)(p->pool, 0);
    else if (!p->asked)
        GS_REAL(cuDeviceGraphMemTrim)(p->device);
}

/* Only one call at a time, of all processes, may ask the driver for what perhaps passes the promise.
 * A descriptor to close, or -1 where another one does not get done. */
static int edge_enter(int card)
{
    int fd = gs_open(gs.region_path, O_RDWR), rc = fd;
    for (int tries = 0; fd >= 0 && tries < EDGE_TRIES; tries++) {
        rc = gs_lock_byte(fd, GS_EDGE_OFFSET + (uint64_t)card);
        if (rc == 0)
            return fd;
        gs_sleep_ns(250000);
    }
    if (fd >= 0)
        gs_close(fd);
    return -1;
}

/* How far the request passes what the pool has to spare. A graph takes again what it had, so that is
 * counted; elsewhere any synchronisation may have given it back by the time of the call. pre: entered. */
static uint64_t lacking(const struct gs_pool *p, uint64_t asked)
{
    if (p->pool)
        return asked;
    uint64_t have = figure(p, 0, 0), used = figure(p, 1, have) + p->asked;
    uint64_t spare = have > used ? have - used : 0;
    return asked > spare ? asked - spare : 0;
}

/* Charge what the request lacks, in units of `granule`. 0 or -ENOMEM. From here to the end of the
 * call graph memory is not trimmed. */
static int guess_at(struct gs_pool *p, struct gs_pool_call *guess, uint64_t granule)
{
    enter();
    guess->number = p->number;
    guess->card = p->card;
    guess->bytes = whole(lacking(p, guess->asked), granule);
    p->asked += guess->asked;
    leave();
    int rc = gs_try_charge(guess->card, guess->bytes);
    if (rc == 0)
        gs_in_flight(guess->card, (int64_t)(guess->underway = guess->bytes));
    enter();
    if (p->number == guess->number) { /* else the pool has ended meanwhile: gs_pool_end() gives it back */
        if (rc == 0)
            p->guessed += guess->bytes;
        else
            p->asked -= guess->asked;
    }
    leave();
    return rc;
}

/* Charge what a call may make the pool grow by, before the driver is asked. CUDA_SUCCESS, or
 * CUDA_ERROR_OUT_OF_MEMORY with the breach recorded. Pair with gs_pool_end(). A graph does not try the
 * edge: what it took too much cannot be trimmed from under another one. */
CUresult gs_pool_begin(struct gs_pool *p, uint64_t asked, struct gs_pool_call *guess, const char *api)
{
    *guess = (struct gs_pool_call){.pool = p, .asked = asked, .edge = -1};
    uint64_t limit;
    if (guess_at(p, guess, GROWTH) == 0)
        return CUDA_SUCCESS;
    int near = p->pool && p->card >= 0 && whole(asked, GS_CHUNK) <= gs_available(p->card, &limit);
    if (near && (guess->edge = edge_enter(p->card)) >= 0) {
        if (guess_at(p, guess, GS_CHUNK) == 0)
            return CUDA_SUCCESS;
        gs_close(guess->edge);
    }
    gs_breach(p->card == GS_CARD_UNLISTED ? GS_BREACH_UNLISTED : GS_BREACH_DENIED, p->card, asked, api);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

/* The driver has done it and handed out `handed` bytes: the guess gives way to the pool's own figure.
 * 1, or 0 where that passes the promise: then undo the call. Either way gs_pool_end() follows. */
int gs_pool_fits(struct gs_pool_call *guess, uint64_t handed)
{
    struct gs_pool *p = guess->pool;
    enter();
    int fits = p->number == guess->number && true_up(p, guess->bytes) == 0;
    if (fits) {
        guess->bytes = 0;
        p->live += handed;
    }
    leave();
    return fits;
}

/* The call is over. A guess that still stands belongs to one that failed or was undone: the pool
 * gives back what nobody uses, and what it keeps is charged. */
void gs_pool_end(struct gs_pool_call *guess)
{
    struct gs_pool *p = guess->pool;
    enter();
    if (p->number != guess->number) {
        gs_uncharge(guess->card, guess->bytes);
    } else {
        p->asked -= guess->asked;
        if (guess->bytes && true_up(p, guess->bytes) < 0) {
            trim(p);
            if (true_up(p, guess->bytes) < 0) { /* others' memory: charged as far as the promise goes */
                p->charged += guess->bytes;
                p->guessed -= guess->bytes;
            }
        }
    }
    leave();
    gs_charge_done(guess->card, guess->underway);
    if (guess->edge >= 0)
        gs_close(guess->edge);
    guess->edge = -1;
}

/* Read every pool again; cheap where there is none. */
void gs_pools_refresh(void)
{
    if (!__atomic_load_n(&count, __ATOMIC_ACQUIRE))
        return;
    enter();
    for (uint32_t i = 0; i < count; i++)
        if (pools[i].number)
            (void)true_up(&pools[i], 0);
    leave();
}

/* Charge what graphs hold now; 1 where that passes the promise. Cheap where there is no such memory. */
int gs_graphs_over(void)
{
    int over = 0;
    if (!__atomic_load_n(&graphs, __ATOMIC_ACQUIRE))
        return 0;
    enter();
    for (uint32_t i = 0; i < count; i++)
        if (pools[i].number && !pools[i].pool)
            over |= true_up(&pools[i], 0) < 0;
    leave();
    return over;
}

/* Make the pools of a card give back what nobody uses; the bytes given. Called from a refusal, also
 * from inside true_up(): then the lock is held and there is nothing to do. */
static uint64_t trim_all(int card)
{
    uint64_t given = 0;
    if (!__atomic_load_n(&count, __ATOMIC_ACQUIRE) || __atomic_exchange_n(&lock, 1, __ATOMIC_ACQUIRE))
        return 0;
    for (uint32_t i = 0; i < count; i++) {
        struct gs_pool *p = &pools[i];
        if (!p->number || p->destroyed || p->card != card)
            continue;
        trim(p);
        uint64_t now = reserved(p);
        if (now < p->charged) {
            gs_uncharge(card, p->charged - now);
            given += p->charged - now;
            p->charged = now;
        }
    }
    leave();
    return given;
}

GS_RECLAIM(trim_all);

/* Take an address that came from a pool out of the table; 1 where it did. Cheap where there is none. */
int gs_pool_take_entry(uint64_t at, struct gs_entry *entry)
{
    return __atomic_load_n(&count, __ATOMIC_ACQUIRE) && gs_table_take(at, GS_KIND_POOLED, entry) == 0;
}

/* The program gives back a device's graph memory. CUDA_SUCCESS, perhaps with nothing done yet. */
CUresult gs_graphs_trim(CUdevice device)
{
    CUresult rc = CUDA_SUCCESS;
    int busy = 0;
    enter();
    for (uint32_t i = 0; i < count; i++)
        busy |= pools[i].number && !pools[i].pool && pools[i].device == device && pools[i].asked;
    if (!busy)
        rc = GS_REAL(cuDeviceGraphMemTrim)(device);
    leave();
    gs_pools_refresh();
    return rc;
}

static void forget(struct gs_pool *p)
{
    gs_uncharge(p->card, p->charged);
    *p = (struct gs_pool){0};
}

/* Memory of pool `number` was freed: the last of a destroyed pool takes the pool with it. */
void gs_pool_freed(uint64_t number, uint64_t bytes)
{
    enter();
    for (uint32_t i = 0; i < count; i++) {
        struct gs_pool *p = &pools[i];
        if (p->number != number)
            continue;
        p->live -= bytes < p->live ? bytes : p->live;
        if (p->destroyed && p->live == 0)
            forget(p);
    }
    leave();
}

/* A pool is about to be destroyed: from now on its handle may mean another one. Our number of it, or 0. */
uint64_t gs_pool_destroying(CUpool pool)
{
    uint64_t number = 0;
    enter();
    for (uint32_t i = 0; i < count; i++)
        if (pools[i].number && !pools[i].destroyed && pools[i].pool == pool && pool) {
            (void)true_up(&pools[i], 0);
            pools[i].destroyed = 1;
            number = pools[i].number;
        }
    leave();
    return number;
}

/* It was destroyed, or was not. A destroyed pool keeps what is still allocated from it, and stays
 * charged for as long. */
void gs_pool_destroyed(uint64_t number, int gone)
{
    enter();
    for (uint32_t i = 0; number && i < count; i++) {
        struct gs_pool *p = &pools[i];
        if (p->number != number)
            continue;
        p->destroyed = (uint32_t)gone;
        if (gone && p->live == 0)
            forget(p);
    }
    leave();
}

/* A forked child has no pools of its own yet. */
static void forget_all(void)
{
    for (uint32_t i = 0; i < POOLS; i++)
        pools[i] = (struct gs_pool){0};
    lock = count = graphs = 0;
}

GS_FORGET_AFTER_FORK(forget_all);
