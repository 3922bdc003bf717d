/* SPDX-License-Identifier: Apache-2.0 */
#include "core.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "limiter.h"
#include "limits.h"
#include "pool.h"
#include "ring.h"
#include "sample.h"
#include "slot.h"
#include "small.h"
#include "spin.h"
#include "symbols.h"
#include "table.h"

#define FIXED "/run/gpushare/"
#define LOOK_NS 50000000ULL /* how often a changed promise is looked for */
#define DEVICES 64
#define WIPEONFORK 18 /* MADV_WIPEONFORK: linux/include/uapi/asm-generic/mman-common.h */

struct gs_core gs;

/* What belongs to one process and must not survive a fork: the kernel zeroes this page in a child. */
struct own {
    uint32_t alive; /* 1; 0 in a child that still knows what its parent did, 2 while it forgets */
    uint32_t pid;   /* 0: no slot yet */
    uint32_t taking;
    uint32_t pad;
    struct gs_desk desk;
    uint8_t busy[GS_CARDS][GS_LANES];
    uint32_t looking; /* 1 while a thread reads a changed promise */
};

static struct own *own;
static uint32_t own_needs_pid; /* a kernel without MADV_WIPEONFORK */
static int8_t card_by_device[DEVICES]; /* card + 2; 0: not asked yet */

static void pick(char *into, const char *fixed, const char *variable)
{
    const char *told = getenv(variable);
    int fd = gs_open(fixed, 0);
    if (fd >= 0 || !told || !*told)
        told = fixed; /* the mounted file wins: an emptied or forged environment changes nothing */
    if (fd >= 0)
        gs_close(fd);
    gs_copy_text(into, 256, told);
}

static void adopt(const struct gs_limits *limits)
{
    uint32_t compute = 0;
    for (uint32_t i = 0; i < limits->card_count; i++) {
        gs.card[i] = limits->cards[i];
        compute |= limits->cards[i].core_ppm && limits->cards[i].core_ppm < 1000000 &&
                   limits->cards[i].policy != GS_POLICY_NONE;
    }
    for (int device = 0; device < DEVICES; device++)
        __atomic_store_n(&card_by_device[device], 0, __ATOMIC_RELAXED);
    gs.flags = limits->flags;
    gs.cards = limits->card_count;
    gs.generation = limits->generation;
    __atomic_store_n(&gs.compute, compute, __ATOMIC_RELEASE);
    if (!gs.region)
        return;
    gs.region->limits_generation = limits->generation;
    for (size_t i = 0; i < sizeof gs.region->promise; i++)
        gs.region->promise[i] = limits->promise[i];
    for (uint32_t i = 0; i < gs.cards; i++) {
        for (int b = 0; b < 16; b++)
            gs.region->cards[i].uuid[b] = gs.card[i].uuid[b];
        gs.region->cards[i].limit_bytes = gs.card[i].memory_bytes;
    }
}

static enum gs_mode begin(void)
{
    static struct gs_limits limits;
    pick(gs.limits_path, FIXED "limits/limits", "GPUSHARE_LIMITS");
    pick(gs.feed_path, FIXED "limits/feed", "GPUSHARE_FEED");
    pick(gs.region_path, FIXED "region/region", "GPUSHARE_REGION");
    int rc = gs_limits_read(gs.limits_path, &limits);
    if (rc == -ENOENT && !getenv("GPUSHARE_LIMITS"))
        return GS_MODE_INERT;
    own = gs_map(4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1);
    gs.region = gs_region_map(gs.region_path);
    if (rc < 0 || !gs.region || !own) {
        gs_say(rc < 0 ? "no GPU memory, the limits file cannot be believed: "
                      : "no GPU memory, the region cannot be used: ",
               rc < 0 ? gs.limits_path : gs.region_path);
        if (gs.region)
            gs_ring_write(gs.region, &(struct gs_record){.kind = GS_BREACH_CONFIG, .card = 0xffff});
        return GS_MODE_BROKEN;
    }
    gs_limiter_forget();
    own_needs_pid = gs_advise(own, 4096, WIPEONFORK) < 0;
    own->alive = 1;
    gs_copy_text((char *)gs.region->library, sizeof gs.region->library, GS_VERSION);
    adopt(&limits);
    return GS_MODE_ACTIVE;
}

/* Read the promise and map the books, once per process; others wait. A child that was forked while
 * its parent was at it begins anew. */
enum gs_mode gs_start(void)
{
    static uint32_t starter; /* its pid */
    uint32_t me = gs_pid();
    while (__atomic_load_n(&gs.mode, __ATOMIC_ACQUIRE) == GS_MODE_NEW) {
        uint32_t seen = __atomic_load_n(&starter, __ATOMIC_ACQUIRE);
        if (seen == me)
            gs_yield();
        else if (__atomic_compare_exchange_n(&starter, &seen, me, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
            __atomic_store_n(&gs.mode, begin(), __ATOMIC_RELEASE);
    }
    return gs.mode;
}

/* A forked child owns nothing of its parent's, and no thread of it holds what the parent's threads
 * held at the fork. Does nothing in any other process. */
void gs_after_fork(void)
{
    uint32_t forked = 0;
    if (!own || __atomic_load_n(&own->alive, __ATOMIC_ACQUIRE) == 1)
        return;
    if (__atomic_compare_exchange_n(&own->alive, &forked, 2, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
        gs_table_forget(), gs_small_forget(), gs_pools_forget(), gs_lingering_forget(), gs_contexts_forget();
        gs_limiter_forget(), gs_sample_forget();
        __atomic_store_n(&own->alive, 1, __ATOMIC_RELEASE);
    }
    while (__atomic_load_n(&own->alive, __ATOMIC_ACQUIRE) == 2)
        gs_yield();
}

/* Look for a changed promise and a new sample, at most every LOOK_NS: the head first, the rest only if it differs.
 * A file that cannot be believed leaves the last promise in force. */
void gs_look(uint64_t coarse_ns)
{
    uint64_t due = __atomic_load_n(&gs.look_ns, __ATOMIC_RELAXED);
    if (GS_LIKELY(coarse_ns < due) ||
        !__atomic_compare_exchange_n(&gs.look_ns, &due, coarse_ns + LOOK_NS, 0, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED))
        return;
    static struct gs_limits limits;
    static uint32_t doubted; /* a bad file is written down once, not at every look */
    if (gs.mode != GS_MODE_ACTIVE || __atomic_exchange_n(&own->looking, 1, __ATOMIC_ACQUIRE))
        return; /* somebody was kept from the processor for longer than LOOK_NS in here */
    long got = gs_read_file(gs.limits_path, &limits, 32);
    int rc = got < 32 || limits.magic != GS_LIMITS_MAGIC ? -EINVAL : 0;
    int news = rc < 0 || !(limits.sequence & 1 || limits.generation == gs.generation);
    if (news && rc == 0 && (rc = gs_limits_read(gs.limits_path, &limits)) == 0)
        adopt(&limits);
    if (news && rc == 0)
        doubted = 0;
    else if (news && rc != -EAGAIN && !doubted++)
        gs_breach(GS_BREACH_CONFIG, GS_CARD_NONE, 0, "limits");
    gs_sample_look();
    __atomic_store_n(&own->looking, 0, __ATOMIC_RELEASE);
}

/* This process's place in the books, or NULL where there is none to be had. */
struct gs_desk *gs_desk(void)
{
    if (GS_UNLIKELY(!own))
        return NULL;
    uint32_t pid = __atomic_load_n(&own->pid, __ATOMIC_ACQUIRE);
    if (GS_LIKELY(pid && (!own_needs_pid || pid == gs_pid())))
        return &own->desk;
    if (pid)
        *own = (struct own){0};
    gs_after_fork();
    while (__atomic_exchange_n(&own->taking, 1, __ATOMIC_ACQUIRE))
        gs_yield();
    if (!own->pid) {
        int rc = gs_slot_take(gs.region, gs.region_path, &own->desk.slot);
        if (rc == 0) {
            own->desk.region = gs.region;
            own->desk.busy = own->busy;
            __atomic_store_n(&own->pid, gs_pid(), __ATOMIC_RELEASE);
        } else {
            gs_breach(GS_BREACH_NO_SLOT, GS_CARD_NONE, (uint64_t)-rc, "slot");
        }
    }
    __atomic_store_n(&own->taking, 0, __ATOMIC_RELEASE);
    return own->pid ? &own->desk : NULL;
}

static int card_with(const uint8_t *uuid)
{
    for (uint32_t i = 0; i < gs.cards; i++) {
        int same = 1;
        for (int b = 0; b < 16; b++)
            same &= gs.card[i].uuid[b] == uuid[b];
        if (same)
            return (int)i;
    }
    return GS_CARD_UNLISTED;
}

/* The promised card behind a CUDA ordinal, GS_CARD_UNLISTED, or GS_CARD_NONE where the driver
 * knows no such device. */
int gs_card_of(CUdevice device)
{
    if (device < 0 || device >= DEVICES)
        return GS_CARD_NONE;
    int8_t known = __atomic_load_n(&card_by_device[device], __ATOMIC_RELAXED);
    if (GS_LIKELY(known))
        return known - 2;
    struct cu_uuid uuid;
    int rc = GS_HAS(cuDeviceGetUuid_v2) ? GS_REAL(cuDeviceGetUuid_v2)(&uuid, device)
                                        : GS_REAL(cuDeviceGetUuid)(&uuid, device);
    if (rc != CUDA_SUCCESS)
        return GS_CARD_NONE;
    int card = card_with(uuid.bytes);
    __atomic_store_n(&card_by_device[device], (int8_t)(card + 2), __ATOMIC_RELAXED);
    return card;
}

/* The card of the calling thread's current context. */
int gs_card_here(void)
{
    CUdevice device;
    return GS_REAL(cuCtxGetDevice)(&device) == CUDA_SUCCESS ? gs_card_of(device) : GS_CARD_NONE;
}

/* The card that a place for memory names, or GS_CARD_NONE: memory of the host. A kind of place that is not known
 * (parts of a device) is taken for the current device. */
int gs_card_at(const struct cu_location *location)
{
    if (location->type >= CU_LOCATION_HOST && location->type <= CU_LOCATION_HOST_CURRENT)
        return GS_CARD_NONE;
    return location->type == CU_LOCATION_DEVICE ? gs_card_of(location->id) : gs_card_here();
}

static void raise_peak(int card, uint64_t used)
{
    uint64_t *peak = &gs.region->cards[card].peak_bytes, seen = __atomic_load_n(peak, __ATOMIC_RELAXED);
    while (used > seen && !__atomic_compare_exchange_n(peak, &seen, used, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
        ;
}

/* Reserve without a breach record: 0, -ENOMEM past the promise, -ENODEV without books.
 * Memory of dead processes, slack in our own pools and a sample that is older than it must be never cause a refusal. */
int gs_charge_quietly(int card, uint64_t bytes)
{
    gs_look(gs_coarse_ns());
    struct gs_desk *desk = gs.mode == GS_MODE_ACTIVE ? gs_desk() : NULL;
    if (!desk || card < 0)
        return -ENODEV;
    uint64_t granules = gs_granules(bytes);
    int rc = gs_reserve(desk, (uint32_t)card, granules, gs_room(card));
    if (rc < 0 && granules <= gs.card[card].memory_bytes / GS_GRANULE) {
        uint64_t given = gs_reap(gs.region, gs.region_path, (int)desk->slot, NULL);
        given += gs_pools_trim(card) + gs_lingering_release(card);
        if (given)
            rc = gs_reserve(desk, (uint32_t)card, granules, gs_room(card));
        if (rc < 0 && gs_sample_renew(card, granules))
            rc = gs_reserve(desk, (uint32_t)card, granules, gs_room(card));
    }
    if (rc == 0)
        raise_peak(card, gs_used(gs.region, (uint32_t)card));
    return rc;
}

static struct gs_slot *slot_of(int card)
{
    struct gs_desk *desk = gs.mode == GS_MODE_ACTIVE && card >= 0 ? gs_desk() : NULL;
    return desk ? &gs.region->slots[desk->slot] : NULL;
}

/* More (or less) is charged for calls of this process that the driver has not answered. */
void gs_underway(int card, int64_t bytes)
{
    struct gs_slot *slot = slot_of(card);
    if (slot)
        __atomic_fetch_add(&slot->underway[card], (uint64_t)bytes, __ATOMIC_SEQ_CST);
}

/* The driver has answered to what gs_charge() took. */
void gs_landed(int card, uint64_t bytes) { gs_underway(card, -(int64_t)bytes); }

/* Charge before the driver is asked. CUDA_SUCCESS, or CUDA_ERROR_OUT_OF_MEMORY with nothing charged
 * and the breach recorded. The caller owes one gs_landed() and one gs_uncharge(). */
CUresult gs_charge(int card, uint64_t bytes, const char *api)
{
    gs_underway(card, (int64_t)bytes);
    if (GS_LIKELY(gs_charge_quietly(card, bytes) == 0))
        return CUDA_SUCCESS;
    gs_landed(card, bytes);
    gs_breach(card == GS_CARD_UNLISTED ? GS_BREACH_UNLISTED : GS_BREACH_DENIED, card, bytes, api);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

/* Give back what gs_charge() took. */
void gs_uncharge(int card, uint64_t bytes)
{
    struct gs_desk *desk = gs.mode == GS_MODE_ACTIVE ? gs_desk() : NULL;
    if (desk && card >= 0)
        gs_refund(desk, (uint32_t)card, gs_granules(bytes));
}

/* Give back what gs_charge() took for a call that failed: in this order, so that no sample takes it for memory. */
void gs_charge_undo(int card, uint64_t bytes)
{
    gs_uncharge(card, bytes);
    gs_landed(card, bytes);
}

/* Bytes in use on the card: the books, and what the driver saw beyond them. */
static uint64_t in_use(int card)
{
    int64_t used = (int64_t)gs_used(gs.region, (uint32_t)card) + gs_excess(card) * (int64_t)GS_GRANULE;
    return used > 0 ? (uint64_t)used : 0;
}

/* Is more in use than was promised? */
int gs_over(int card)
{
    return gs_excess(card) > 0 && in_use(card) > gs.card[card].memory_bytes;
}

/* Bytes of the promise that nobody holds, and the promise. */
uint64_t gs_left(int card, uint64_t *limit)
{
    gs_look(gs_coarse_ns());
    *limit = gs.mode == GS_MODE_ACTIVE && card >= 0 ? gs.card[card].memory_bytes : 0;
    uint64_t used = *limit ? in_use(card) : 0;
    return used < *limit ? *limit - used : 0;
}

/* Memory that crosses processes: more (or less) of ours that others may map, of theirs that we do. */
void gs_share(int card, int64_t exported, int64_t imported)
{
    struct gs_slot *slot = slot_of(card);
    if (!slot)
        return;
    __atomic_fetch_add(&slot->exported[card], (uint64_t)exported, __ATOMIC_RELAXED);
    __atomic_fetch_add(&slot->imported[card], (uint64_t)imported, __ATOMIC_RELAXED);
}

/* gs_landed() where what was charged is an estimate of what was made, which a sample of the host may correct. It is
 * given back by gs_guess_uncharge(). */
void gs_guess_landed(int card, uint64_t bytes)
{
    struct gs_slot *slot = slot_of(card);
    if (!slot)
        return;
    __atomic_fetch_add(&slot->guessed[card], bytes, __ATOMIC_SEQ_CST);
    __atomic_store_n(&slot->guessed_ns, gs_now_ns(), __ATOMIC_SEQ_CST);
    gs_landed(card, bytes);
}

/* Give back an estimate: samples from before do not give it back once more. */
void gs_guess_uncharge(int card, uint64_t bytes)
{
    struct gs_slot *slot = slot_of(card);
    if (!slot || !bytes)
        return;
    gs_underway(card, (int64_t)bytes);
    __atomic_fetch_add(&gs.region->cards[card].released_granules, gs_granules(bytes), __ATOMIC_SEQ_CST);
    __atomic_fetch_sub(&slot->guessed[card], bytes, __ATOMIC_SEQ_CST);
    gs_charge_undo(card, bytes);
}

/* More (or less) of what this process is charged may lie on the host. */
void gs_managed_more(int card, int64_t bytes)
{
    struct gs_slot *slot = slot_of(card);
    if (slot)
        __atomic_fetch_add(&slot->managed[card], (uint64_t)bytes, __ATOMIC_SEQ_CST);
}

/* Does any other process map shared memory of this card? */
int gs_shared_still(int card)
{
    struct gs_desk *desk = gs.mode == GS_MODE_ACTIVE && card >= 0 ? gs_desk() : NULL;
    return desk && gs_imports_of(gs.region, (uint32_t)card, desk->slot) > 0;
}

/* Write down what went against the promise, and say so once in a while. */
void gs_breach(enum gs_breach kind, int card, uint64_t requested, const char *api)
{
    if (!gs.region)
        return;
    struct gs_record record = {.kind = (uint16_t)kind, .card = card < 0 ? 0xffff : (uint16_t)card,
                               .requested = requested, .api = gs_crc32(api, gs_length(api))};
    if (card >= 0) {
        struct gs_card *shared = &gs.region->cards[card];
        record.used = in_use(card);
        record.limit = gs.card[card].memory_bytes;
        if (kind == GS_BREACH_DENIED) {
            __atomic_fetch_add(&shared->denied, 1, __ATOMIC_RELAXED);
            __atomic_fetch_add(&shared->denied_bytes, requested, __ATOMIC_RELAXED);
        }
    }
    gs_ring_write(gs.region, &record);
    if (kind == GS_BREACH_DENIED || kind == GS_BREACH_UNLISTED)
        gs_say("past the promised GPU memory, refused: ", api);
}
