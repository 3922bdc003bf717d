/* SPDX-License-Identifier: Apache-2.0 */
/* Everything that somebody else may write, written wrongly: limits, feed, region. For the sanitizers.
 *
 *   hostile ROUNDS FOLDER   prints what was accepted and refused; exit status 0 where nothing was believed
 *                            that must not be, and every step came to an end
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../src/bucket.h"
#include "../src/ledger.h"
#include "../src/limits.h"
#include "../src/ring.h"
#include "../src/slot.h"
#include "../src/sys.h"

#define CHECK(what)                                                        \
    do {                                                                   \
        if (!(what)) {                                                     \
            fprintf(stderr, "line %d: %s\n", __LINE__, #what);             \
            exit(1);                                                       \
        }                                                                  \
    } while (0)

static const uint64_t odd[] = {0, 1, 15, 16, 17, 255, 256, 0x7fff, 0xffff, 0x7fffffff, 0x80000000, 0xffffffff,
                               1ULL << 40, (1ULL << 63) - 1, 1ULL << 63, UINT64_MAX};
static uint32_t over;
static char region_path[256];

static uint64_t draw(unsigned *seed)
{
    uint64_t word = (uint64_t)rand_r(seed) << 33 ^ (uint64_t)rand_r(seed) << 16 ^ (uint64_t)rand_r(seed);
    return rand_r(seed) % 2 ? word : odd[word % (sizeof odd / sizeof *odd)];
}

/* A few aligned words of `bytes` bytes become something else. */
static void scribble(void *at, size_t bytes, unsigned *seed)
{
    for (unsigned left = 1 + rand_r(seed) % 6; left; left--) {
        uint64_t word = draw(seed);
        size_t place = (size_t)rand_r(seed) % (bytes - sizeof word), width = (size_t)1 << rand_r(seed) % 4;
        memcpy((char *)at + place, &word, width);
    }
}

/* A file that is whole and sealed and says impossible things: believed only where all of it is possible. */
static void limits(unsigned *seed, unsigned counts[2])
{
    struct gs_limits it = {.magic = GS_LIMITS_MAGIC, .major = GS_ABI_MAJOR, .bytes = sizeof it, .card_count = 2,
                           .card_offset = offsetof(struct gs_limits, cards),
                           .card_stride = sizeof(struct gs_limit_card)};
    size_t head = offsetof(struct gs_limits, generation);
    scribble(&it, rand_r(seed) % 2 ? offsetof(struct gs_limits, cards) + 256 : sizeof it, seed);
    if (rand_r(seed) % 8)
        it.crc = gs_crc32(&it.generation, sizeof it - head);
    int rc = gs_limits_check(&it, rand_r(seed) % 8 ? (long)sizeof it : rand_r(seed) % 5000);
    counts[rc == 0]++;
    CHECK(rc == 0 || rc == -EINVAL || rc == -EPROTO || rc == -EAGAIN);
    if (rc < 0)
        return;
    CHECK(it.card_count <= GS_CARDS && it.major == GS_ABI_MAJOR && !(it.sequence & 1));
    for (uint32_t i = 0; i < it.card_count; i++)
        CHECK(it.cards[i].core_ppm <= 1000000 && it.cards[i].policy <= GS_POLICY_NONE);
}

static void feed(unsigned *seed, unsigned counts[2])
{
    struct gs_feed it = {.magic = GS_FEED_MAGIC, .major = GS_ABI_MAJOR, .bytes = sizeof it, .card_count = 2,
                         .card_offset = offsetof(struct gs_feed, cards), .card_stride = sizeof(struct gs_feed_card)};
    scribble(&it, sizeof it, seed);
    if (rand_r(seed) % 8)
        it.crc = gs_crc32(&it.written_ns, sizeof it - offsetof(struct gs_feed, written_ns));
    int rc = gs_feed_check(&it, rand_r(seed) % 8 ? (long)sizeof it : rand_r(seed) % 2000);
    counts[rc == 0]++;
    CHECK(rc <= 0 && (rc < 0 || it.card_count <= GS_CARDS));
}

/* A region that its tenant scribbles on: every operation ends, and the limit is never exceeded by what the
 * card's word says now. */
static void ledger(struct gs_region *region, unsigned *seed)
{
    static uint8_t busy[GS_CARDS][GS_LANES];
    uint32_t card = (uint32_t)rand_r(seed) % GS_CARDS;
    struct gs_account account = {.region = region, .slot = (uint32_t)rand_r(seed) % GS_SLOTS, .busy = busy};
    uint64_t limit = draw(seed), want = draw(seed), keep[GS_CARDS] = {[3] = draw(seed)};
    int rc = gs_reserve(&account, card, want, limit);
    CHECK(rc == 0 || rc == -ENOMEM);
    CHECK(rc < 0 || want <= limit);
    if (rc == 0)
        gs_refund(&account, card, want);
    gs_settle(region, card);
    (void)gs_slot_used(region, account.slot, card);
    (void)gs_imports_of(region, card, account.slot);
    (void)gs_empty_slot(region, account.slot, keep);
    gs_ring_write(region, &(struct gs_record){.kind = (uint16_t)draw(seed), .card = 1, .requested = want});
    gs_bucket_charge(&region->cards[card].paid_until_ns, gs_now_ns(), draw(seed), (uint32_t)draw(seed) % 1000001);
    gs_bucket_correct(&region->cards[card].paid_until_ns, (int64_t)(draw(seed) >> 2), 300000);
    (void)gs_bucket_debt(&region->cards[card].paid_until_ns, gs_now_ns());
    (void)gs_region_check(region, (int64_t)(draw(seed) >> 1));
}

/* Another one reserves at the same moment. Its view of the words is what TSan watches. */
static void *beside(void *argument)
{
    struct gs_region *region = argument;
    static uint8_t busy[GS_CARDS][GS_LANES];
    struct gs_account account = {.region = region, .slot = 5, .busy = busy};
    unsigned seed = 5;
    while (!__atomic_load_n(&over, __ATOMIC_RELAXED)) {
        uint32_t card = (uint32_t)rand_r(&seed) % GS_CARDS;
        if (gs_reserve(&account, card, 1 + rand_r(&seed) % 1000, 100000) == 0)
            gs_refund(&account, card, 1000);
        __atomic_store_n(&region->cards[card].word, draw(&seed), __ATOMIC_RELAXED);
        struct gs_lane *lane = &region->slots[draw(&seed) % GS_SLOTS].lanes[card][draw(&seed) % GS_LANES];
        __atomic_store_n(&lane->state, draw(&seed), __ATOMIC_RELAXED);
        __atomic_store_n(&lane->intent, draw(&seed), __ATOMIC_RELAXED);
        __atomic_store_n(&region->ring_head, draw(&seed), __ATOMIC_RELAXED);
    }
    return NULL;
}

/* Files that are no files: an answer at once, and never yes. */
static void special(const char *folder)
{
    static const char *const names[] = {"fifo", "folder", "loop", "short", "missing", "/dev/zero", "/dev/full"};
    static struct gs_limits it;
    static struct gs_feed fed;
    char path[512];
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        snprintf(path, sizeof path, "%s%s%s", names[i][0] == '/' ? "" : folder, names[i][0] == '/' ? "" : "/", names[i]);
        CHECK(gs_limits_read(path, &it, 20) < 0);
        CHECK(gs_feed_read(path, &fed) < 0);
        CHECK(gs_region_map(path) == NULL);
    }
}

static struct gs_region *fresh(void)
{
    int fd = open(region_path, O_RDWR | O_CREAT | O_TRUNC, 0600);
    CHECK(fd >= 0 && ftruncate(fd, sizeof(struct gs_region)) == 0);
    struct gs_region *region = mmap(NULL, sizeof *region, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(region != MAP_FAILED && close(fd) == 0);
    region->lock_offset = GS_LOCK_OFFSET;
    return region;
}

int main(int argc, char **argv)
{
    unsigned seed = 11, sealed[2] = {0}, fed[2] = {0}, turns = 0;
    if (argc < 3)
        return 2;
    special(argv[2]);
    snprintf(region_path, sizeof region_path, "%s/region", argv[2]);
    struct gs_region *region = fresh();
    unsigned rounds = (unsigned)atoi(argv[1]);
    for (; turns < rounds; turns++) {
        limits(&seed, sealed);
        feed(&seed, fed);
        scribble(region, turns % 2 ? offsetof(struct gs_region, slots) + 3 * sizeof(struct gs_slot) : sizeof *region,
                 &seed);
        ledger(region, &seed);
        if (turns % 512 == 0)
            (void)gs_reap(region, region_path, 3, NULL);
    }
    CHECK(munmap(region, sizeof *region) == 0);
    region = fresh();
    pthread_t other;
    CHECK(pthread_create(&other, NULL, beside, region) == 0);
    for (turns = 0; turns < rounds; turns++)
        ledger(region, &seed);
    __atomic_store_n(&over, 1, __ATOMIC_RELAXED);
    CHECK(pthread_join(other, NULL) == 0);
    printf("limits %u %u feeds %u %u\n", sealed[0], sealed[1], fed[0], fed[1]);
    return 0;
}
