/* SPDX-License-Identifier: Apache-2.0 */
/* Copies and fills: they happen in host memory at once, and take their time on the card.
 * Return convention: CUresult. */
#include "device.h"
#include "graph.h"
#include "memory.h"
#include "sim.h"
#include "stream.h"

#include <string.h>

enum { CONTENT = 256 << 20 }; /* bytes of one allocation that keep what is written to them */

/* Check that [at, at + bytes) is one live allocation if it is device memory at all, and say how much
 * of it keeps its contents. */
static CUresult check(CUdeviceptr at, uint64_t bytes, uint64_t *kept)
{
    *kept = bytes;
    if (!sim_in_arena(at))
        return at ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    CUdeviceptr base;
    uint64_t size;
    struct sim_range *range;
    TRY(sim_extent(at, &base, &size, &range));
    if (bytes > base + size - at)
        return CUDA_ERROR_INVALID_VALUE;
    for (uint64_t i = (at - base) / SIM_BLOCK; range->map && i * SIM_BLOCK < at - base + bytes; i++)
        if (!range->map[i])
            return CUDA_ERROR_INVALID_VALUE;
    range->touched = 1;
    uint64_t limit = range->kind == SIM_RANGE_HOST ? UINT64_MAX : CONTENT, offset = at - base;
    *kept = offset >= limit ? 0 : bytes < limit - offset ? bytes : limit - offset;
    return CUDA_SUCCESS;
}

/* Copy bytes between any two addresses; beyond what is kept, zeros are read. */
CUresult sim_move(CUdeviceptr to, CUdeviceptr from, uint64_t bytes)
{
    LOCKED();
    uint64_t write, read;
    if (!bytes)
        return CUDA_SUCCESS;
    TRY(check(to, bytes, &write));
    TRY(check(from, bytes, &read));
    uint64_t both = read < write ? read : write;
    memmove((void *)to, (const void *)from, both);
    if (write > both && !sim_in_arena(to))
        memset((char *)to + both, 0, write - both);
    return CUDA_SUCCESS;
}

/* Fill rows with a value of 1, 2 or 4 bytes. */
CUresult sim_fill(CUdeviceptr to, uint64_t pitch, unsigned value, unsigned element, uint64_t width, uint64_t height)
{
    LOCKED();
    if (!width || !height)
        return CUDA_SUCCESS;
    for (uint64_t row = 0; row < height; row++) {
        char *at = (char *)to + row * pitch;
        uint64_t kept;
        TRY(check((CUdeviceptr)at, width * element, &kept));
        if (element == 1 || !value) {
            memset(at, (int)value, kept);
            continue;
        }
        for (uint64_t i = 0; i + element <= kept; i += element)
            memcpy(at + i, &value, element);
    }
    return CUDA_SUCCESS;
}

/* 1 for memory of a card (also managed), 0 for the host's. */
static int on_card(CUdeviceptr address)
{
    LOCKED();
    const struct sim_range *range = sim_range_at(address);
    return range && range->kind != SIM_RANGE_HOST;
}

/* How long a copy takes: on the card at memory speed, otherwise over the bus. */
uint64_t sim_copy_ns(const struct sim_device *device, CUdeviceptr to, CUdeviceptr from, uint64_t bytes)
{
    const struct hw_model *model = &device->card->model;
    int inside = on_card(to) && on_card(from);
    uint64_t mbps = inside ? model->memory_mhz * model->bus_bits / 8 : model->copy_mbps;
    return 1000 + bytes * 1000 / (mbps ? mbps : 1);
}

/* Queue the time of a copy or fill, or record it while capturing. */
static CUresult spend(struct sim_stream *stream, enum cu_node node, uint64_t ns, int wait)
{
    struct hw_item work = {.work = HW_COPY, .left_ns = ns};
    if (stream->capture) {
        LOCKED();
        return wait ? CUDA_ERROR_STREAM_CAPTURE_IMPLICIT : sim_capture_work(stream, node, &work);
    }
    TRY(sim_submit(stream, &work, NULL, NULL));
    return wait ? sim_wait(sim_device_of(stream->context), stream->last) : CUDA_SUCCESS;
}

/* One linear copy in a stream. */
static CUresult copy(CUdeviceptr to, CUdeviceptr from, uint64_t bytes, void *handle, int wait)
{
    ENTER();
    struct sim_stream *stream;
    TRY(sim_stream_of(handle, &stream));
    TRY(sim_move(to, from, bytes));
    if (!bytes)
        return CUDA_SUCCESS;
    return spend(stream, CU_NODE_MEMCPY, sim_copy_ns(sim_device_of(stream->context), to, from, bytes), wait);
}

#define COPY(name, to_type, from_type)                                                        \
    API CUresult name##_v2(to_type to, from_type from, size_t bytes)                          \
    {                                                                                         \
        return copy((CUdeviceptr)to, (CUdeviceptr)from, bytes, NULL, 1);                      \
    }                                                                                         \
    API CUresult name(to_type to, from_type from, size_t bytes)                               \
    {                                                                                         \
        return copy((CUdeviceptr)to, (CUdeviceptr)from, bytes, NULL, 1);                      \
    }                                                                                         \
    API CUresult name##Async_v2(to_type to, from_type from, size_t bytes, void *stream)       \
    {                                                                                         \
        return copy((CUdeviceptr)to, (CUdeviceptr)from, bytes, stream, 0);                    \
    }                                                                                         \
    API CUresult name##Async(to_type to, from_type from, size_t bytes, void *stream)          \
    {                                                                                         \
        return copy((CUdeviceptr)to, (CUdeviceptr)from, bytes, stream, 0);                    \
    }

COPY(cuMemcpyHtoD, CUdeviceptr, const void *)
COPY(cuMemcpyDtoH, void *, CUdeviceptr)
COPY(cuMemcpyDtoD, CUdeviceptr, CUdeviceptr)

API CUresult cuMemcpy(CUdeviceptr to, CUdeviceptr from, size_t bytes)
{
    return copy(to, from, bytes, NULL, 1);
}

API CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, void *stream)
{
    return copy(to, from, bytes, stream, 0);
}

API CUresult cuMemcpyPeer(CUdeviceptr to, void *to_context, CUdeviceptr from, void *from_context, size_t bytes)
{
    (void)to_context, (void)from_context;
    return copy(to, from, bytes, NULL, 1);
}

API CUresult cuMemcpyPeerAsync(CUdeviceptr to, void *to_context, CUdeviceptr from, void *from_context, size_t bytes,
                               void *stream)
{
    (void)to_context, (void)from_context;
    return copy(to, from, bytes, stream, 0);
}

/* One fill in a stream. */
static CUresult fill(CUdeviceptr to, uint64_t pitch, unsigned value, unsigned element, uint64_t width,
                     uint64_t height, void *handle, int wait)
{
    ENTER();
    struct sim_stream *stream;
    TRY(sim_stream_of(handle, &stream));
    TRY(sim_fill(to, pitch, value, element, width, height));
    uint64_t bytes = width * height * element;
    if (!bytes)
        return CUDA_SUCCESS;
    return spend(stream, CU_NODE_MEMSET, sim_copy_ns(sim_device_of(stream->context), to, to, bytes), wait);
}

#define FILL(bits, type)                                                                                    \
    API CUresult cuMemsetD##bits##_v2(CUdeviceptr to, type value, size_t count)                             \
    {                                                                                                       \
        return fill(to, 0, value, bits / 8, count, 1, NULL, 0);                                             \
    }                                                                                                       \
    API CUresult cuMemsetD##bits(CUdeviceptr to, type value, size_t count)                                  \
    {                                                                                                       \
        return fill(to, 0, value, bits / 8, count, 1, NULL, 0);                                             \
    }                                                                                                       \
    API CUresult cuMemsetD##bits##Async(CUdeviceptr to, type value, size_t count, void *stream)             \
    {                                                                                                       \
        return fill(to, 0, value, bits / 8, count, 1, stream, 0);                                           \
    }                                                                                                       \
    API CUresult cuMemsetD2D##bits##_v2(CUdeviceptr to, size_t pitch, type value, size_t width, size_t rows) \
    {                                                                                                       \
        return fill(to, pitch, value, bits / 8, width, rows, NULL, 0);                                      \
    }                                                                                                       \
    API CUresult cuMemsetD2D##bits(CUdeviceptr to, size_t pitch, type value, size_t width, size_t rows)     \
    {                                                                                                       \
        return fill(to, pitch, value, bits / 8, width, rows, NULL, 0);                                      \
    }                                                                                                       \
    API CUresult cuMemsetD2D##bits##Async(CUdeviceptr to, size_t pitch, type value, size_t width,           \
                                          size_t rows, void *stream)                                        \
    {                                                                                                       \
        return fill(to, pitch, value, bits / 8, width, rows, stream, 0);                                    \
    }

FILL(8, uint8_t)
FILL(16, uint16_t)
FILL(32, uint32_t)
