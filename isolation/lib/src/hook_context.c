/* SPDX-License-Identifier: Apache-2.0 */
/* Contexts and their limits: memory that no allocation call names. Charged as an upper estimate when
 * they are made, inside the promise, and given back when they go.
 */
#include "hook.h"
#include "pool.h"
#include "spin.h"

#define CONTEXT_BYTES (320 * GS_MIB) /* where the host gives no figure for the chip */
#define DEVICES 64

static struct {
    uint32_t lock;
    uint32_t users;
    uint64_t charged; /* for the primary context of this device */
    CUcontext context;
} primary[DEVICES];

/* A forked child has none. */
static void forget_all(void)
{
    for (int device = 0; device < DEVICES; device++) {
        primary[device].lock = 0;
        primary[device].charged = primary[device].users = 0;
    }
}

GS_FORGET_AFTER_FORK(forget_all);

static uint64_t estimate(int card)
{
    uint64_t known = card >= 0 ? gs.card[card].context_bytes : 0;
    return known ? known : CONTEXT_BYTES;
}

static int card_for(CUdevice device) { return gs_managed() ? gs_card_of(device) : GS_CARD_NONE; }

/* The driver said `rc` to a context that is charged already. */
static CUresult made(CUresult rc, int card, uint64_t bytes, CUcontext *context)
{
    if (rc != CUDA_SUCCESS) {
        gs_charge_undo(card, bytes);
        return rc;
    }
    gs_estimate_done(card, bytes);
    struct gs_entry entry = {.key = (uint64_t)*context, .bytes = bytes, .card = (int16_t)card,
                             .kind = GS_KIND_CONTEXT, .extra = (uint64_t)*context};
    (void)gs_table_put(&entry);
    return rc;
}

#define CREATE(name, parameters, ...)                                                                                  \
    GS_API CUresult name parameters                                                                                    \
    {                                                                                                                  \
        int card = card_for(device);                                                                                   \
        if (card == GS_CARD_NONE)                                                                                      \
            return GS_REAL(name)(__VA_ARGS__);                                                                         \
        uint64_t bytes = estimate(card);                                                                               \
        CUresult rc = gs_charge(card, bytes, __func__);                                                                \
        return rc ? rc : made(GS_REAL(name)(__VA_ARGS__), card, bytes, context);                                       \
    }

CREATE(cuCtxCreate, (CUcontext * context, unsigned flags, CUdevice device), context, flags, device)
CREATE(cuCtxCreate_v2, (CUcontext * context, unsigned flags, CUdevice device), context, flags, device)
CREATE(cuCtxCreate_v3, (CUcontext * context, void *affinity, int number, unsigned flags, CUdevice device), context,
       affinity, number, flags, device)
CREATE(cuCtxCreate_v4, (CUcontext * context, void *how, unsigned flags, CUdevice device), context, how, flags, device)

/* A green context lives inside the primary one, which it retains. */
GS_API CUresult cuGreenCtxCreate(CUcontext *context, void *resources, CUdevice device, unsigned flags)
{
    CUcontext held;
    int card = card_for(device);
    if (card != GS_CARD_NONE && cuDevicePrimaryCtxRetain(&held, device) == CUDA_ERROR_OUT_OF_MEMORY)
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult rc = GS_REAL(cuGreenCtxCreate)(context, resources, device, flags);
    if (card != GS_CARD_NONE)
        (void)cuDevicePrimaryCtxRelease_v2(device);
    return rc;
}

static CUresult destroy(CUcontext context, CUresult (*real)(CUcontext))
{
    struct gs_cut cut;
    if (!gs_managed())
        return real(context);
    gs_table_cut((uint64_t)context, &cut); /* the driver frees all that was made in it, and hands it out again */
    CUresult rc = real(context);
    gs_table_cut_end(&cut, rc == CUDA_SUCCESS ? gs_release_entry : NULL);
    if (rc == CUDA_SUCCESS)
        gs_pools_refresh();
    return rc;
}

GS_API CUresult cuCtxDestroy(CUcontext context) { return destroy(context, GS_REAL(cuCtxDestroy)); }
GS_API CUresult cuCtxDestroy_v2(CUcontext context) { return destroy(context, GS_REAL(cuCtxDestroy_v2)); }

static int enter(CUdevice device)
{
    if (device < 0 || device >= DEVICES || !gs_managed())
        return 0;
    gs_spin_enter(&primary[device].lock);
    return 1;
}

static void leave(CUdevice device) { gs_spin_leave(&primary[device].lock); }

/* Charged by the first retain of this process, and again after the context was gone. */
GS_API CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
    int card = card_for(device);
    if (card == GS_CARD_NONE || !enter(device))
        return GS_REAL(cuDevicePrimaryCtxRetain)(context, device);
    CUresult rc = CUDA_SUCCESS;
    uint64_t bytes = primary[device].charged ? 0 : estimate(card);
    if (bytes)
        rc = gs_charge(card, bytes, __func__);
    if (rc == CUDA_SUCCESS) {
        rc = GS_REAL(cuDevicePrimaryCtxRetain)(context, device);
        if (rc != CUDA_SUCCESS) {
            gs_charge_undo(card, bytes);
        } else {
            if (bytes)
                gs_estimate_done(card, bytes);
            primary[device].users = bytes ? 1 : primary[device].users + 1;
            primary[device].charged += bytes;
            primary[device].context = *context;
        }
    }
    leave(device);
    return rc;
}

/* A release or a reset: the context and all in it is given back if that was the end of it. What is in it
 * leaves the table before the driver may hand its addresses out again. */
static CUresult release(CUdevice device, CUresult (*real)(CUdevice), int all)
{
    unsigned flags;
    int active = 1;
    struct gs_cut cut = {0};
    if (!enter(device))
        return real(device);
    int last = primary[device].charged && (all || primary[device].users <= 1);
    if (last)
        gs_table_cut((uint64_t)primary[device].context, &cut);
    CUresult rc = real(device);
    if (rc == CUDA_SUCCESS && primary[device].users)
        primary[device].users--;
    if (rc == CUDA_SUCCESS && primary[device].charged)
        (void)GS_REAL(cuDevicePrimaryCtxGetState)(device, &flags, &active);
    if (!active && !last) /* somebody retained it behind our back */
        gs_table_cut((uint64_t)primary[device].context, &cut);
    gs_table_cut_end(&cut, active ? NULL : gs_release_entry);
    if (!active) {
        gs_estimate_uncharge(gs_card_of(device), primary[device].charged);
        primary[device].charged = primary[device].users = 0;
        gs_pools_refresh();
    }
    leave(device);
    return rc;
}

#define RELEASE(name, all)                                                                                             \
    GS_API CUresult name(CUdevice device) { return release(device, GS_REAL(name), all); }

RELEASE(cuDevicePrimaryCtxRelease, 0)
RELEASE(cuDevicePrimaryCtxRelease_v2, 0)
RELEASE(cuDevicePrimaryCtxReset, 1)
RELEASE(cuDevicePrimaryCtxReset_v2, 1)

/* Bytes that a limit takes beyond what a context has from the start: the stack once for each thread
 * that can be resident, the buffer of printf and the heap as they are. For the device runtime upper estimates: "up to
 * 150 MB" for each level of synchronisation (CUDA C++ Programming Guide, device runtime, memory footprint), and for
 * a launch that waits its parameters (4 KiB) and as much again for its configuration. */
static uint64_t extra_bytes(int limit, uint64_t value)
{
    static const uint64_t first[] = {1024, 1 << 20, 8 << 20, 2, 2048}; /* cuCtxGetLimit of a fresh context */
    static const uint64_t each[] = {1, 1, 1, 150 * GS_MIB, 8192};
    CUdevice device;
    int units = 0, threads = 0;
    uint64_t more = value > first[limit] ? value - first[limit] : 0;
    if (limit != CU_LIMIT_STACK || !more)
        return __builtin_mul_overflow(more, each[limit], &more) ? UINT64_MAX : more;
    if (GS_REAL(cuCtxGetDevice)(&device) != CUDA_SUCCESS ||
        GS_REAL(cuDeviceGetAttribute)(&units, CU_DEVICE_UNITS, device) != CUDA_SUCCESS ||
        GS_REAL(cuDeviceGetAttribute)(&threads, CU_DEVICE_THREADS, device) != CUDA_SUCCESS)
        return 0;
    return __builtin_mul_overflow(more, (uint64_t)units * (uint64_t)threads, &more) ? UINT64_MAX : more;
}

/* What all limits of the current context take once `limit` is `value`, in whole blocks. */
static uint64_t limits_bytes(int limit, uint64_t value)
{
    uint64_t sum = 0;
    for (int i = CU_LIMIT_STACK; i < CU_LIMITS_OF_MEMORY; i++) {
        size_t now = 0;
        if (i != limit && GS_REAL(cuCtxGetLimit)(&now, i) != CUDA_SUCCESS)
            now = 0;
        if (__builtin_add_overflow(sum, extra_bytes(i, i == limit ? value : now), &sum))
            return UINT64_MAX;
    }
    return sum > UINT64_MAX - GS_CHUNK ? sum : (sum + GS_CHUNK - 1) / GS_CHUNK * GS_CHUNK;
}

/* Device heap, stacks, printf buffer and what the device runtime reserves come on top of everything else. */
GS_API CUresult cuCtxSetLimit(int limit, size_t value)
{
    static uint32_t lock; /* two threads that change one context's limits must not both replace the old charge */
    int card;
    if (limit < CU_LIMIT_STACK || limit >= CU_LIMITS_OF_MEMORY || !gs_managed() ||
        (card = gs_card_here()) == GS_CARD_NONE)
        return GS_REAL(cuCtxSetLimit)(limit, value);
    struct gs_entry old = {0};
    uint64_t context = gs_context_here();
    gs_spin_enter(&lock);
    uint64_t bytes = limits_bytes(limit, value);
    (void)gs_table_get(context, GS_KIND_LIMITS, &old);
    CUresult rc = bytes > old.bytes ? gs_charge(card, bytes - old.bytes, __func__) : CUDA_SUCCESS;
    if (rc == CUDA_SUCCESS) {
        rc = GS_REAL(cuCtxSetLimit)(limit, value);
        uint64_t more = bytes > old.bytes ? bytes - old.bytes : 0, less = old.bytes > bytes ? old.bytes - bytes : 0;
        if (rc == CUDA_SUCCESS) {
            gs_estimate_done(card, more);
            gs_estimate_uncharge(card, less);
            struct gs_entry entry = {.key = context, .bytes = bytes, .card = (int16_t)card, .kind = GS_KIND_LIMITS,
                                     .extra = context};
            (void)gs_table_put(&entry);
        } else {
            gs_charge_undo(card, more);
        }
    }
    gs_spin_leave(&lock);
    return rc;
}
