/* SPDX-License-Identifier: Apache-2.0 */
/* The pure parts in one process, for the sanitizers: ledger, ring, limits and feed, bucket, table.
 *
 *   unit SECONDS   prints nothing, exit status 0 where all is right
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../src/bucket.h"
#include "../src/fork.h"
#include "../src/ledger.h"
#include "../src/limits.h"
#include "../src/ring.h"
#include "../src/sys.h"
#include "../src/table.h"

#define THREADS 6
#define SLOTS_USED 3
#define LIMIT 2000

static struct gs_region region;
static struct gs_limits shared_limits;
static uint8_t busy[SLOTS_USED][GS_CARDS][GS_LANES];
static uint64_t until;

#define CHECK(what)                                                        \
    do {                                                                   \
        if (!(what)) {                                                     \
            fprintf(stderr, "line %d: %s\n", __LINE__, #what);             \
            exit(1);                                                       \
        }                                                                  \
    } while (0)

/* Reserve and refund at random through a account that other threads use too. */
static void *book(void *argument)
{
    unsigned seed = (unsigned)(uintptr_t)argument;
    struct gs_account account = {.region = &region, .slot = seed % SLOTS_USED, .busy = busy[seed % SLOTS_USED]};
    uint64_t held[8] = {0};
    while (gs_now_ns() < until) {
        unsigned i = rand_r(&seed) % 8, want = 1 + rand_r(&seed) % 300;
        if (held[i])
            gs_refund(&account, 1, held[i]), held[i] = 0;
        else if (gs_reserve(&account, 1, want, LIMIT) == 0)
            held[i] = want;
        else
            gs_ring_write(&region, &(struct gs_record){.kind = GS_BREACH_DENIED, .card = 1, .requested = want});
        CHECK(gs_used(&region, 1) <= LIMIT * GS_GRANULE);
        struct gs_entry entry = {.key = (uint64_t)seed << 9, .bytes = want, .kind = GS_KIND_MEMORY}, back;
        if (gs_table_put(&entry) == 0 && gs_table_take(entry.key, GS_KIND_MEMORY, &back) == 0)
            CHECK(back.key == entry.key);
        gs_bucket_charge(&region.cards[1].paid_until_ns, gs_now_ns(), want, 300000);
    }
    for (int i = 0; i < 8; i++)
        if (held[i])
            gs_refund(&account, 1, held[i]);
    return NULL;
}

static void seal(struct gs_limits *limits)
{
    limits->crc = gs_crc32(&limits->generation, sizeof *limits - offsetof(struct gs_limits, generation));
}

static void limits_are_believed_only_whole(void)
{
    unsigned seed = 7;
    struct gs_limits good = {.magic = GS_LIMITS_MAGIC, .major = GS_ABI_MAJOR, .bytes = sizeof good, .card_count = 2,
                             .card_offset = offsetof(struct gs_limits, cards),
                             .card_stride = sizeof(struct gs_limit_card)};
    seal(&good);
    CHECK(gs_limits_check(&good, sizeof good) == 0);
    CHECK(gs_crc32("123456789", 9) == 0xcbf43926);
    for (long bytes = 0; bytes < (long)sizeof good; bytes += 97)
        CHECK(gs_limits_check(&good, bytes) < 0);
    for (int i = 0; i < 20000; i++) {
        shared_limits = good;
        size_t at = (size_t)rand_r(&seed) % sizeof good;
        uint8_t bit = (uint8_t)(1 << rand_r(&seed) % 8);
        ((uint8_t *)&shared_limits)[at] ^= bit;
        int minor = at / 2 == offsetof(struct gs_limits, minor) / 2;
        int low = at == offsetof(struct gs_limits, sequence);
        int even = low ? bit != 1 : at / 4 == offsetof(struct gs_limits, sequence) / 4;
        CHECK((gs_limits_check(&shared_limits, sizeof good) == 0) == (minor || even));
    }
    good.cards[0].core_ppm = 1000001;
    seal(&good);
    CHECK(gs_limits_check(&good, sizeof good) < 0);
}

static void slots_empty_whatever_their_lanes_hold(void)
{
    struct gs_account a = {.region = &region, .slot = 5, .busy = busy[0]};
    CHECK(gs_reserve(&a, 2, 10, 100) == 0);
    region.slots[5].lanes[2][(gs_thread_hash() + 1) % GS_LANES].state = (uint64_t)(-6) & ((1ULL << 40) - 1);
    region.cards[2].word -= 6; /* as if another lane had freed 6 of the 10 */
    CHECK(gs_used(&region, 2) == 4 * GS_GRANULE && gs_slot_used(&region, 5, 2) == 4 * (int64_t)GS_GRANULE);
    CHECK(gs_empty_slot(&region, 5, NULL) == 4 * GS_GRANULE);
    CHECK(gs_used(&region, 2) == 0 && gs_slot_used(&region, 5, 2) == 0);
    uint64_t keep[GS_CARDS] = {[2] = 3 * GS_GRANULE};
    CHECK(gs_reserve(&a, 2, 10, 100) == 0 && gs_empty_slot(&region, 5, keep) == 7 * GS_GRANULE);
    CHECK(gs_used(&region, 2) == 3 * GS_GRANULE && gs_slot_used(&region, 5, 2) == 3 * (int64_t)GS_GRANULE);
    CHECK(gs_empty_slot(&region, 5, NULL) == 3 * GS_GRANULE);
}

static void bucket_keeps_the_rate(void)
{
    uint64_t paid = 0, now = 1000000000000ULL, work = 0;
    for (uint64_t end = now + 1000000000; now < end; work += 5000000) {
        int64_t debt = gs_bucket_debt(&paid, now);
        now += debt > 0 ? (uint64_t)debt : 0;
        gs_bucket_charge(&paid, now, 5000000, 300000);
    }
    CHECK(work >= 300000000 && work <= 315000000); /* 30 % of a second, and the credit of 20 ms at the start */
    struct gs_cost *small = gs_cost_find(1, 100), *large = gs_cost_find(1, 100000);
    CHECK(small != large && small == gs_cost_find(1, 127) && gs_cost_find(2, 100) != small);
    uint64_t random = 1, timed = 0;
    for (int i = 0; i < 8; i++)
        gs_cost_learn(small, 50000);
    CHECK(small->mean_ns == 50000);
    for (int i = 0; i < 8000; i++)
        timed += gs_cost_timed(small, &random);
    CHECK(timed > 7000 && timed < 9000); /* each drawn one stands for eight */
    gs_cost_learn(small, 5000000);
    for (int i = 0; i < 60; i++)
        gs_cost_learn(small, 1000);
    CHECK(small->mean_ns < GS_TIME_ALL_NS);
    for (int i = 0; i < GS_HOT; i++)
        CHECK(gs_cost_timed(small, &random) == 1);
}

static void table_holds_many(void)
{
    struct gs_entry out;
    for (uint64_t i = 1; i <= 50000; i++) {
        struct gs_entry entry = {.key = i * 512, .bytes = i, .kind = GS_KIND_ARRAY, .extra = i % 2};
        CHECK(gs_table_put(&entry) == 0);
    }
    for (uint64_t i = 1; i <= 50000; i += 3)
        CHECK(gs_table_take(i * 512, GS_KIND_ARRAY, &out) == 0 && out.bytes == i);
    for (uint64_t i = 1; i <= 50000; i++)
        CHECK((gs_table_get(i * 512, GS_KIND_ARRAY, &out) == 0) == (i % 3 != 1));
    CHECK(gs_table_get(512, GS_KIND_MEMORY, &out) < 0);
    static uint32_t alive;
    gs_fork_watch(&alive);
    gs_after_fork(); /* in a process that was not forked: nothing */
    CHECK(gs_table_get(1024, GS_KIND_ARRAY, &out) == 0);
    alive = 0; /* as the kernel leaves it in a child */
    gs_after_fork();
    CHECK(alive == 1);
    CHECK(gs_table_get(1024, GS_KIND_ARRAY, &out) < 0);
}

int main(int argc, char **argv)
{
    pthread_t thread[THREADS];
    uint64_t limit = 0;
    region.slots_high = SLOTS_USED;
    until = gs_now_ns() + (uint64_t)((argc > 1 ? atof(argv[1]) : 1) * 1e9);
    for (uintptr_t i = 0; i < THREADS; i++)
        pthread_create(&thread[i], NULL, book, (void *)(i + 1));
    for (int i = 0; i < THREADS; i++)
        pthread_join(thread[i], NULL);
    for (uint32_t i = 0; i < SLOTS_USED; i++)
        limit += (uint64_t)gs_slot_used(&region, i, 1);
    CHECK(gs_used(&region, 1) == 0 && limit == 0);
    slots_empty_whatever_their_lanes_hold();
    limits_are_believed_only_whole();
    bucket_keeps_the_rate();
    table_holds_many();
    return 0;
}
