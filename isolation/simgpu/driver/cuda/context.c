/* SPDX-License-Identifier: Apache-2.0 */
/* Contexts: primary and created, the stack of each thread, limits, what they cost in memory.
 * Return convention: CUresult. */
#include "context.h"
#include "device.h"
#include "memory.h"
#include "module.h"
#include "pool.h"
#include "sim.h"
#include "stream.h"

#include <errno.h>
#include <stdlib.h>

static __thread struct sim_context *stack[SIM_STACK];
static __thread int depth;
static uint64_t context_ids;

/* A handle that is a live context. */
CUresult sim_check_context(struct sim_context *context)
{
    if (!context)
        return CUDA_ERROR_INVALID_CONTEXT;
    return context->tag == SIM_CONTEXT ? CUDA_SUCCESS : CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

/* The calling thread's context. */
CUresult sim_current(struct sim_context **context)
{
    *context = depth ? stack[depth - 1] : NULL;
    return sim_check_context(*context);
}

struct sim_device *sim_device_of(const struct sim_context *context)
{
    return sim_device[context->device];
}

/* The error that a broken card or a faulted context answers everything with. */
CUresult sim_device_error(const struct sim_device *device)
{
    if (device->card->fault == HW_FAULT_LOST)
        return CUDA_ERROR_UNKNOWN;
    if (device->card->ecc_uncorrected)
        return CUDA_ERROR_ECC_UNCORRECTABLE;
    return device->client ? (CUresult)device->client->fault : CUDA_SUCCESS;
}

uint64_t sim_round(uint64_t bytes, uint64_t granule)
{
    return bytes > UINT64_MAX - granule ? UINT64_MAX - UINT64_MAX % granule : (bytes + granule - 1) / granule * granule;
}

/* Move physical bytes into this process's books. */
CUresult sim_charge(struct sim_device *device, enum hw_kind kind, uint64_t bytes)
{
    hw_spin(sim_params()->alloc_ns);
    CARD_LOCKED(device);
    return hw_charge(&sim_hw, device->card, device->client, kind, bytes) ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

void sim_refund(struct sim_device *device, enum hw_kind kind, uint64_t bytes)
{
    hw_spin(sim_params()->alloc_ns);
    CARD_LOCKED(device);
    hw_refund(&sim_hw, device->card, device->client, kind, bytes);
}

/* The process's entry in the card's books; made when first needed, with or without a context. */
CUresult sim_client(struct sim_device *device)
{
    LOCKED();
    if (device->client)
        return CUDA_SUCCESS;
    CARD_LOCKED(device);
    int index = hw_attach(&sim_hw, device->card);
    if (index < 0)
        return index == -ENOTCONN ? CUDA_ERROR_MPS_SERVER_NOT_READY
               : index == -EMFILE ? CUDA_ERROR_MPS_MAX_CLIENTS_REACHED
                                  : CUDA_ERROR_OUT_OF_MEMORY;
    device->client = &device->card->client[index];
    return CUDA_SUCCESS;
}

/* Whether the card's compute mode lets this process compute. */
static CUresult check_mode(struct sim_device *device)
{
    CARD_LOCKED(device);
    return hw_taken(device->card, device->client) ? CUDA_ERROR_DEVICE_UNAVAILABLE : CUDA_SUCCESS;
}

/* Bytes of a context of this model with the default limits. */
static uint64_t base_bytes(const struct sim_device *device)
{
    uint64_t bytes = sim_params()->context_bytes ? sim_params()->context_bytes : device->card->model.context_bytes;
    return sim_round(bytes, sim_params()->granule_bytes);
}

/* What a limit costs beyond its default: heap and FIFO as they are, the stack once per resident thread; for each level
 * at which kernels may wait for kernels, registers (256 KiB) and shared memory (96 KiB) of every multiprocessor, which
 * are put aside meanwhile; for a launch that waits, its parameters (4 KiB) and 512 bytes. */
static uint64_t limit_bytes(const struct sim_device *device, const uint64_t *limit)
{
    static const uint64_t DEFAULT[CU_LIMITS_OF_MEMORY] = {1024, 1 << 20, 8 << 20, 2, 2048};
    const struct hw_model *model = &device->card->model;
    const uint64_t each[CU_LIMITS_OF_MEMORY] = {model->sms * model->threads_per_sm, 1, 1, model->sms * (352 << 10),
                                                4608};
    uint64_t bytes = 0;
    for (int i = CU_LIMIT_STACK; i < CU_LIMITS_OF_MEMORY; i++)
        bytes += limit[i] > DEFAULT[i] ? (limit[i] - DEFAULT[i]) * each[i] : 0;
    return sim_round(bytes, sim_params()->granule_bytes);
}

/* Make a context of `bytes` (0: what the model says); its memory is charged before it exists. */
CUresult sim_make_context(int index, uint64_t bytes, struct sim_context **made)
{
    struct sim_device *device = sim_device[index];
    TRY(sim_client(device));
    TRY(sim_device_error(device));
    if (!device->contexts)
        TRY(check_mode(device));
    bytes = bytes ? bytes : base_bytes(device);
    TRY(sim_charge(device, HW_CONTEXT, bytes));
    hw_spin(sim_params()->context_ns);
    struct sim_context *context = sim_new(sizeof *context);
    context->tag = SIM_CONTEXT;
    context->device = index;
    context->id = ++context_ids;
    context->base_bytes = bytes;
    context->limit[CU_LIMIT_STACK] = 1024;
    context->limit[CU_LIMIT_PRINTF] = 1 << 20;
    context->limit[CU_LIMIT_HEAP] = 8 << 20;
    context->limit[CU_LIMIT_SYNC_DEPTH] = 2;
    context->limit[CU_LIMIT_PENDING_LAUNCH] = 2048;
    context->limit[5] = 64;
    context->legacy = sim_make_stream(context, 0, 0);
    context->per_thread = sim_make_stream(context, 0, -1);
    context->next = device->contexts;
    device->contexts = context;
    CARD_LOCKED(device);
    hw_put(device->card, &device->client->contexts, device->client->contexts + 1);
    *made = context;
    return CUDA_SUCCESS;
}

static void end_range(struct sim_range *range, void *context)
{
    if (range->context == context)
        sim_free(range);
}

/* Free everything that belongs to the context, then itself. Queued work was waited for. */
void sim_end_context(struct sim_context *context)
{
    struct sim_device *device = sim_device_of(context);
    sim_modules_end(context);
    sim_each_range(end_range, context);
    struct sim_context **at = &device->contexts;
    while (*at && *at != context)
        at = &(*at)->next;
    if (*at)
        *at = context->next;
    for (struct sim_stream *s = device->streams; s; s = s->next)
        if (s->context == context)
            s->tag = SIM_DEAD;
    if (!device->contexts) {
        sim_pool_trim(&device->pool, 0);
        sim_pool_trim(&device->graph_pool, 0);
    }
    sim_refund(device, HW_CONTEXT, context->base_bytes + context->limit_bytes);
    context->tag = SIM_DEAD;
    CARD_LOCKED(device);
    hw_put(device->card, &device->client->contexts, device->client->contexts - 1);
    if (!device->contexts && !device->client->server)
        hw_put(device->card, &device->client->fault, 0); /* a new context starts clean, outside MPS */
}

/* One more user of the device's primary context. */
CUresult sim_retain_primary(CUdevice index, struct sim_context **context)
{
    struct sim_device *device;
    TRY(sim_check_device(index, &device));
    LOCKED();
    if (!device->primary) {
        TRY(sim_make_context(index, 0, &device->primary));
        device->primary->primary = 1;
        device->primary->flags = device->primary_flags;
    }
    device->primary_users++;
    *context = device->primary;
    return CUDA_SUCCESS;
}

API CUresult cuDevicePrimaryCtxRetain(struct sim_context **context, CUdevice index)
{
    ENTER();
    return context ? sim_retain_primary(index, context) : CUDA_ERROR_INVALID_VALUE;
}

/* Let users of the primary context go; at the last one it ends. */
static CUresult release_primary(CUdevice index, int all)
{
    ENTER();
    struct sim_device *device;
    TRY(sim_check_device(index, &device));
    if (!device->primary)
        return all ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
    if (all || device->primary_users == 1)
        sim_wait_context(device);
    LOCKED();
    if (!device->primary)
        return CUDA_ERROR_INVALID_CONTEXT;
    device->primary_users -= all ? 0 : 1;
    if (all || !device->primary_users) {
        sim_end_context(device->primary);
        device->primary = NULL;
        device->primary_users = 0;
    }
    return CUDA_SUCCESS;
}

API CUresult cuDevicePrimaryCtxRelease_v2(CUdevice index)
{
    return release_primary(index, 0);
}

API CUresult cuDevicePrimaryCtxRelease(CUdevice index)
{
    return release_primary(index, 0);
}

API CUresult cuDevicePrimaryCtxReset_v2(CUdevice index)
{
    return release_primary(index, 1);
}

API CUresult cuDevicePrimaryCtxReset(CUdevice index)
{
    return release_primary(index, 1);
}

API CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice index, unsigned flags)
{
    ENTER();
    struct sim_device *device;
    TRY(sim_check_device(index, &device));
    LOCKED();
    device->primary_flags = flags;
    if (device->primary)
        device->primary->flags = flags;
    return CUDA_SUCCESS;
}

API CUresult cuDevicePrimaryCtxSetFlags(CUdevice index, unsigned flags)
{
    return cuDevicePrimaryCtxSetFlags_v2(index, flags);
}

API CUresult cuDevicePrimaryCtxGetState(CUdevice index, unsigned *flags, int *active)
{
    ENTER();
    struct sim_device *device;
    TRY(sim_check_device(index, &device));
    if (!flags || !active)
        return CUDA_ERROR_INVALID_VALUE;
    *flags = device->primary_flags;
    *active = device->primary != NULL;
    return CUDA_SUCCESS;
}

/* Create a context and make it the thread's current one. */
static CUresult create(struct sim_context **made, unsigned flags, CUdevice index)
{
    ENTER();
    struct sim_device *device;
    if (!made)
        return CUDA_ERROR_INVALID_VALUE;
    TRY(sim_check_device(index, &device));
    if (depth == SIM_STACK)
        return CUDA_ERROR_INVALID_VALUE;
    LOCKED();
    TRY(sim_make_context(index, 0, made));
    (*made)->flags = flags;
    stack[depth++] = *made;
    return CUDA_SUCCESS;
}

API CUresult cuCtxCreate_v2(struct sim_context **made, unsigned flags, CUdevice index)
{
    return create(made, flags, index);
}

API CUresult cuCtxCreate(struct sim_context **made, unsigned flags, CUdevice index)
{
    return create(made, flags, index);
}

API CUresult cuCtxCreate_v3(struct sim_context **made, void *affinity, int count, unsigned flags, CUdevice index)
{
    (void)affinity;
    return count ? CUDA_ERROR_NOT_SUPPORTED : create(made, flags, index);
}

API CUresult cuCtxCreate_v4(struct sim_context **made, void *params, unsigned flags, CUdevice index)
{
    (void)params; /* execution affinity needs MPS, CIG needs graphics */
    return create(made, flags, index);
}

API CUresult cuCtxDestroy_v2(struct sim_context *context)
{
    ENTER();
    TRY(sim_check_context(context));
    if (context->primary)
        return CUDA_ERROR_INVALID_CONTEXT;
    sim_wait_context(sim_device_of(context));
    LOCKED();
    TRY(sim_check_context(context));
    if (depth && stack[depth - 1] == context)
        depth--;
    sim_end_context(context);
    return CUDA_SUCCESS;
}

API CUresult cuCtxDestroy(struct sim_context *context)
{
    return cuCtxDestroy_v2(context);
}

API CUresult cuCtxDetach(struct sim_context *context)
{
    return cuCtxDestroy_v2(context);
}

API CUresult cuCtxPushCurrent_v2(struct sim_context *context)
{
    ENTER();
    TRY(sim_check_context(context));
    if (depth == SIM_STACK)
        return CUDA_ERROR_INVALID_VALUE;
    stack[depth++] = context;
    return CUDA_SUCCESS;
}

API CUresult cuCtxPushCurrent(struct sim_context *context)
{
    return cuCtxPushCurrent_v2(context);
}

API CUresult cuCtxPopCurrent_v2(struct sim_context **context)
{
    ENTER();
    if (!depth)
        return CUDA_ERROR_INVALID_CONTEXT;
    depth--;
    if (context)
        *context = stack[depth];
    return CUDA_SUCCESS;
}

API CUresult cuCtxPopCurrent(struct sim_context **context)
{
    return cuCtxPopCurrent_v2(context);
}

API CUresult cuCtxSetCurrent(struct sim_context *context)
{
    ENTER();
    if (context)
        TRY(sim_check_context(context));
    if (!context)
        depth -= depth > 0;
    else if (depth)
        stack[depth - 1] = context;
    else
        stack[depth++] = context;
    return CUDA_SUCCESS;
}

API CUresult cuCtxGetCurrent(struct sim_context **context)
{
    ENTER();
    if (!context)
        return CUDA_ERROR_INVALID_VALUE;
    *context = depth ? stack[depth - 1] : NULL;
    return CUDA_SUCCESS;
}

/* Change a limit; what it costs in memory is charged at once. */
API CUresult cuCtxSetLimit(int which, size_t value)
{
    ENTER();
    struct sim_context *context;
    TRY(sim_current(&context));
    struct sim_device *device = sim_device_of(context);
    if (which < 0 || which >= CU_LIMITS || (which == CU_LIMIT_SYNC_DEPTH && device->card->model.cc_major >= 9))
        return CUDA_ERROR_UNSUPPORTED_LIMIT;
    if (which == CU_LIMIT_SYNC_DEPTH && value > 24) /* the deepest nesting there is */
        return CUDA_ERROR_INVALID_VALUE;
    LOCKED();
    uint64_t before = context->limit[which], had = context->limit_bytes;
    context->limit[which] = value;
    uint64_t now = limit_bytes(device, context->limit);
    CUresult result = now > had ? sim_charge(device, HW_CONTEXT, now - had) : CUDA_SUCCESS;
    if (result) {
        context->limit[which] = before;
        return result;
    }
    if (now < had)
        sim_refund(device, HW_CONTEXT, had - now);
    context->limit_bytes = now;
    return CUDA_SUCCESS;
}
