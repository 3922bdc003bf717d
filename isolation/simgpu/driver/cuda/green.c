/* SPDX-License-Identifier: Apache-2.0 */
/* Green contexts: a context of its own on some of the SMs. Its kernels are no wider than those, and
 * stand in the same books. Return convention: CUresult. */
#include "context.h"
#include "device.h"
#include "event.h"
#include "sim.h"
#include "stream.h"

#include <stdlib.h>
#include <string.h>

enum { SM_RESOURCE = 1 };

struct resource { /* CUdevResource */
    int type;
    char internal[92];
    union {
        struct {
            unsigned count, least, aligned, flags, domain;
        } sm;
        char size[40];
    };
    void *next;
};

struct description { /* CUdevResourceDesc points at one */
    unsigned sms;
};

struct green {
    uint32_t tag;
    struct sim_context *context;
    unsigned sms;
};

static struct green *green_check(void *handle)
{
    struct green *green = handle;
    return green && green->tag == SIM_GREEN ? green : NULL;
}

/* SMs come in groups: of 8 from compute capability 9 on, of 2 before. */
static struct resource sms_of(const struct sim_device *device, unsigned count)
{
    struct resource resource;
    unsigned group = device->card->model.cc_major >= 9 ? 8 : 2;
    memset(&resource, 0, sizeof resource);
    resource.type = SM_RESOURCE;
    resource.sm.count = count;
    resource.sm.least = group > 2 ? 8 : 4;
    resource.sm.aligned = group;
    return resource;
}

API CUresult cuDeviceGetDevResource(CUdevice index, struct resource *resource, int type)
{
    ENTER();
    struct sim_device *device;
    TRY(sim_check_device(index, &device));
    if (!resource || type != SM_RESOURCE)
        return resource ? CUDA_ERROR_NOT_SUPPORTED : CUDA_ERROR_INVALID_VALUE;
    *resource = sms_of(device, (unsigned)device->card->model.sms);
    return CUDA_SUCCESS;
}

API CUresult cuCtxGetDevResource(struct sim_context *context, struct resource *resource, int type)
{
    ENTER();
    TRY(sim_check_context(context));
    TRY(cuDeviceGetDevResource(context->device, resource, type));
    if (context->share)
        resource->sm.count = (unsigned)((context->share * resource->sm.count + 500000) / 1000000);
    return CUDA_SUCCESS;
}

/* As many equal groups as were asked for and fit; what is left over goes to `rest`. */
API CUresult cuDevSmResourceSplitByCount(struct resource *groups, unsigned *count, const struct resource *from,
                                         struct resource *rest, unsigned flags, unsigned least)
{
    ENTER();
    (void)flags;
    if (!count || !from || from->type != SM_RESOURCE || !from->sm.aligned)
        return CUDA_ERROR_INVALID_VALUE;
    unsigned each = least < from->sm.least ? from->sm.least : least;
    each = (each + from->sm.aligned - 1) / from->sm.aligned * from->sm.aligned;
    unsigned fit = from->sm.count / each, wanted = groups && *count < fit ? *count : fit;
    for (unsigned i = 0; groups && i < wanted; i++) {
        groups[i] = *from;
        groups[i].sm.count = each;
    }
    if (rest) {
        *rest = *from;
        rest->sm.count = from->sm.count - wanted * each;
    }
    *count = wanted;
    return CUDA_SUCCESS;
}

API CUresult cuDevResourceGenerateDesc(struct description **made, const struct resource *resources, unsigned count)
{
    ENTER();
    if (!made || !resources || !count)
        return CUDA_ERROR_INVALID_VALUE;
    *made = sim_new(sizeof **made);
    for (unsigned i = 0; i < count; i++)
        (*made)->sms += resources[i].type == SM_RESOURCE ? resources[i].sm.count : 0;
    return (*made)->sms ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* A green context costs one granule; it needs the device's primary context. */
API CUresult cuGreenCtxCreate(struct green **made, const struct description *description, CUdevice index,
                              unsigned flags)
{
    ENTER();
    struct sim_device *device;
    TRY(sim_check_device(index, &device));
    if (!made || !description || flags != 1) /* CU_GREEN_CTX_DEFAULT_STREAM is required */
        return CUDA_ERROR_INVALID_VALUE;
    struct sim_context *primary;
    if (!device->primary)
        TRY(sim_retain_primary(index, &primary));
    LOCKED();
    struct green *green = sim_new(sizeof *green);
    CUresult result = sim_make_context(index, sim_params()->granule_bytes, &green->context);
    if (result) {
        free(green);
        return result;
    }
    green->tag = SIM_GREEN;
    green->sms = description->sms;
    green->context->share = green->sms * 1000000ull / device->card->model.sms;
    *made = green;
    return CUDA_SUCCESS;
}

API CUresult cuGreenCtxDestroy(void *handle)
{
    ENTER();
    struct green *green = green_check(handle);
    if (!green)
        return CUDA_ERROR_INVALID_CONTEXT;
    sim_wait_context(sim_device_of(green->context));
    LOCKED();
    if (!green_check(handle))
        return CUDA_ERROR_INVALID_CONTEXT;
    green->tag = SIM_DEAD;
    sim_end_context(green->context);
    return CUDA_SUCCESS;
}

API CUresult cuCtxFromGreenCtx(struct sim_context **context, void *handle)
{
    ENTER();
    struct green *green = green_check(handle);
    if (!green || !context)
        return CUDA_ERROR_INVALID_CONTEXT;
    *context = green->context;
    return CUDA_SUCCESS;
}

API CUresult cuGreenCtxGetDevResource(void *handle, struct resource *resource, int type)
{
    struct green *green = green_check(handle);
    return green ? cuCtxGetDevResource(green->context, resource, type) : CUDA_ERROR_INVALID_CONTEXT;
}

API CUresult cuGreenCtxStreamCreate(struct sim_stream **stream, void *handle, unsigned flags, int priority)
{
    ENTER();
    struct green *green = green_check(handle);
    if (!green || !stream || !(flags & CU_STREAM_NON_BLOCKING))
        return green ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_CONTEXT;
    LOCKED();
    *stream = sim_make_stream(green->context, CU_STREAM_NON_BLOCKING, -1);
    (*stream)->priority = priority;
    (*stream)->green = green;
    return CUDA_SUCCESS;
}

API CUresult cuStreamGetGreenCtx(void *handle, void **green)
{
    ENTER();
    struct sim_stream *stream;
    TRY(sim_stream_of(handle, &stream));
    if (!green)
        return CUDA_ERROR_INVALID_VALUE;
    *green = stream->green;
    return CUDA_SUCCESS;
}

API CUresult cuCtxRecordEvent(struct sim_context *context, struct sim_event *event);
API CUresult cuCtxWaitEvent(struct sim_context *context, struct sim_event *event);

API CUresult cuGreenCtxRecordEvent(void *handle, struct sim_event *event)
{
    struct green *green = green_check(handle);
    return green ? cuCtxRecordEvent(green->context, event) : CUDA_ERROR_INVALID_CONTEXT;
}

API CUresult cuGreenCtxWaitEvent(void *handle, struct sim_event *event)
{
    struct green *green = green_check(handle);
    return green ? cuCtxWaitEvent(green->context, event) : CUDA_ERROR_INVALID_CONTEXT;
}
