/* SPDX-License-Identifier: Apache-2.0 */
#include "core.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "fork.h"
#include "limits.h"
#include "ring.h"
#include "slot.h"
#include "symbols.h"

#define FIXED "/run/gpushare/"
#define REFRESH_NS 50000000ULL /* how often a changed promise is looked for */
#define DEVICES 64
#define WIPEONFORK 18 /* MADV_WIPEONFORK: linux/include/uapi/asm-generic/mman-common.h */

struct gs_core gs;

/* What belongs to one process and must not survive a fork: the kernel zeroes this page in a child. */
struct own {
    uint32_t alive; /* fork.h */
    uint32_t pid;   /* 0: no slot yet */
    uint32_t taking;
    uint32_t pad;
    struct gs_account account;
    uint8_t busy[GS_CARDS][GS_LANES];
    uint32_t looking; /* 1 while a thread reads a changed promise */
};

static struct own *own;
static uint32_t own_needs_pid; /* a kernel without MADV_WIPEONFORK */
static int8_t card_by_device[DEVICES]; /* card + 2; 0: not asked yet */

/* Write down what concerns no one card. */
static void report(enum gs_breach kind, uint64_t requested, const char *what)
{
    gs_ring_write(gs.region, &(struct gs_record){.kind = (uint16_t)kind, .card = 0xffff, .requested = requested,
                                                 .api = gs_crc32(what, gs_length(what))});
}

static void pick(char *into, const char *fixed, const char *variable)
{
    const char *path = getenv(variable);
    int fd = gs_open(fixed, 0);
    if (fd >= 0 || !path || !*path)
        path = fixed; /* the mounted file wins: an emptied or forged environment changes nothing */
    if (fd >= 0)
        gs_close(fd);
    gs_copy_text(into, 256, path);
}

static void adopt(const struct gs_limits *limits)
{
    uint32_t compute = 0;
    for (uint32_t i = 0; i < limits->card_count; i++) {
        gs.card[i] = limits->cards[i];
        compute |= ((limits->cards[i].core_ppm && limits->cards[i].core_ppm < 1000000) ||
                    limits->cards[i].ceiling_ppm) &&
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
    /* For long: without limits this process never has memory, and whoever rewrites them may be short of processors. */
    int rc = gs_limits_read(gs.limits_path, &limits, 2000);
    if (rc == -ENOENT && !getenv("GPUSHARE_LIMITS"))
        return GS_MODE_INERT;
    own = gs_map(4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1);
    gs.region = gs_region_map(gs.region_path);
    if (rc < 0 || !gs.region || !own) {
        gs_log(rc < 0 ? "no GPU memory, the limits file cannot be believed: "
                      : "no GPU memory, the region cannot be used: ",
               rc < 0 ? gs.limits_path : gs.region_path);
        if (gs.region)
            report(GS_BREACH_CONFIG, 0, "");
        return GS_MODE_BROKEN;
    }
    own_needs_pid = gs_advise(own, 4096, WIPEONFORK) < 0;
    gs_fork_watch(&own->alive);
    gs_copy_text((char *)gs.region->library, sizeof gs.region->library, GS_VERSION);
    adopt(&limits);
    return GS_MODE_ACTIVE;
}

/* Read the promise and map the ledger, once per process; others wait. A child that was forked while
 * its parent was at it starts over. */
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

/* Look for a changed promise, at most every REFRESH_NS: the head first, the rest only if it differs. A file that cannot
 * be believed leaves the last promise in force. 1 where it was time to look. */
int gs_promise_refresh(uint64_t coarse_ns)
{
    static struct gs_limits limits;
    static uint32_t reported; /* a bad file is written down once, not at every look */
    uint64_t due = __atomic_load_n(&gs.refresh_ns, __ATOMIC_RELAXED);
    if (coarse_ns < due || !__atomic_compare_exchange_n(&gs.refresh_ns, &due, coarse_ns + REFRESH_NS, 0,
                                                        __ATOMIC_ACQ_REL, __ATOMIC_RELAXED))
        return 0;
    if (gs.mode != GS_MODE_ACTIVE || __atomic_exchange_n(&own->looking, 1, __ATOMIC_ACQUIRE))
        return 0; /* another thread was kept from the processor for longer than REFRESH_NS in here */
    long got = gs_read_file(gs.limits_path, &limits, 32);
    int rc = got < 32 || limits.magic != GS_LIMITS_MAGIC ? -EINVAL : 0;
    int changed = rc < 0 || !(limits.sequence & 1 || limits.generation == gs.generation);
    if (changed && rc == 0 && (rc = gs_limits_read(gs.limits_path, &limits, 20)) == 0)
        adopt(&limits);
    if (changed && rc == 0)
        reported = 0;
    else if (changed && rc != -EAGAIN && !reported++)
        report(GS_BREACH_CONFIG, 0, "limits");
    __atomic_store_n(&own->looking, 0, __ATOMIC_RELEASE);
    return 1;
}

/* This process's place in the ledger, or NULL where there is none to be had. */
struct gs_account *gs_account(void)
{
    if (GS_UNLIKELY(!own))
        return NULL;
    uint32_t pid = __atomic_load_n(&own->pid, __ATOMIC_ACQUIRE);
    if (GS_LIKELY(pid && (!own_needs_pid || pid == gs_pid())))
        return &own->account;
    if (pid)
        *own = (struct own){0};
    gs_after_fork();
    while (__atomic_exchange_n(&own->taking, 1, __ATOMIC_ACQUIRE))
        gs_yield();
    if (!own->pid) {
        int rc = gs_slot_take(gs.region, gs.region_path, &own->account.slot);
        if (rc == 0) {
            own->account.region = gs.region;
            own->account.busy = own->busy;
            __atomic_store_n(&own->pid, gs_pid(), __ATOMIC_RELEASE);
        } else {
            report(GS_BREACH_NO_SLOT, (uint64_t)-rc, "slot");
        }
    }
    __atomic_store_n(&own->taking, 0, __ATOMIC_RELEASE);
    return own->pid ? &own->account : NULL;
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
