/* SPDX-License-Identifier: Apache-2.0 */
/* CUDA arrays, and copies in two and three dimensions.
 * Return convention: CUresult. */
#include "context.h"
#include "device.h"
#include "graph.h"
#include "memory.h"
#include "sim.h"
#include "stream.h"

#include <stdlib.h>
#include <string.h>

struct sim_array {
    uint32_t tag;
    struct cu_array3 shape;
    struct sim_range *range;
    uint64_t row_bytes, rows; /* rows: of one layer */
    struct sim_array **level; /* of a mipmapped array */
    unsigned levels;
};

/* Bytes of one channel (CUarray_format); 0: unknown. */
static uint64_t format_bytes(int format)
{
    switch (format) {
    case 1: case 8: return 1;
    case 2: case 9: case 16: return 2;
    case 3: case 10: case 32: return 4;
    default: return 0;
    }
}

/* Bytes of an array, 0 where the shape makes no sense. Of one dimension: padded to 512 bytes. Of more: in blocks of 64
 * bytes by 8 rows, up to 16 of them on top of each other, as open drivers lay images out (NVK's NIL); NVIDIA does not
 * publish its own layout. */
static uint64_t shape_bytes(const struct cu_array3 *shape, uint64_t *row, uint64_t *rows)
{
    uint64_t block = 8;
    while (block < shape->height && block < 128)
        block *= 2;
    *row = sim_round(shape->width * format_bytes(shape->format) * shape->channels, shape->height ? 64 : 512);
    *rows = shape->height ? sim_round(shape->height, block) : 1;
    return *row * *rows * (shape->depth ? shape->depth : 1);
}

/* What the card gives an array: nothing where memory is mapped to it later. */
static uint64_t backing(const struct cu_array3 *shape, uint64_t bytes)
{
    return shape->flags & (CU_ARRAY_SPARSE | CU_ARRAY_DEFERRED) ? 0 : sim_round(bytes, sim_params()->granule_bytes);
}

/* Make an array that takes `whole` bytes of the card. */
static CUresult make(struct sim_array **made, const struct cu_array3 *shape, uint64_t whole)
{
    struct sim_context *context;
    TRY(sim_current(&context));
    uint64_t row, rows, bytes = made && shape ? shape_bytes(shape, &row, &rows) : 0;
    if (!bytes)
        return CUDA_ERROR_INVALID_VALUE;
    struct sim_device *device = sim_device_of(context);
    if (whole)
        TRY(sim_charge(device, HW_ARRAY, whole));
    struct sim_range *range = sim_range_new(SIM_RANGE_SYMBOL, context, bytes);
    if (!range) {
        sim_refund(device, HW_ARRAY, whole);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    range->charged_bytes = whole;
    range->hw_kind = HW_ARRAY;
    *made = sim_new(sizeof **made);
    **made = (struct sim_array){.tag = SIM_ARRAY, .shape = *shape, .range = range, .row_bytes = row, .rows = rows};
    return CUDA_SUCCESS;
}

/* An array of its own: whole granules of the card. */
static CUresult make_alone(struct sim_array **made, const struct cu_array3 *shape)
{
    uint64_t row, rows, bytes = shape ? shape_bytes(shape, &row, &rows) : 0;
    return make(made, shape, shape ? backing(shape, bytes) : 0);
}

API CUresult cuArray3DCreate_v2(struct sim_array **made, const struct cu_array3 *shape)
{
    ENTER();
    LOCKED();
    return make_alone(made, shape);
}

API CUresult cuArrayCreate_v2(struct sim_array **made, const struct cu_array2 *shape)
{
    ENTER();
    if (!shape)
        return CUDA_ERROR_INVALID_VALUE;
    struct cu_array3 full = {shape->width, shape->height, 0, shape->format, shape->channels, 0};
    LOCKED();
    return make_alone(made, &full);
}

static CUresult end(struct sim_array *array)
{
    for (unsigned i = 0; i < array->levels; i++)
        TRY(end(array->level[i]));
    free(array->level);
    array->tag = SIM_DEAD;
    return array->range ? sim_free(array->range) : CUDA_SUCCESS;
}

API CUresult cuArrayDestroy(struct sim_array *array)
{
    ENTER();
    LOCKED();
    return array && array->tag == SIM_ARRAY ? end(array) : CUDA_ERROR_INVALID_HANDLE;
}

API CUresult cuArray3DGetDescriptor_v2(struct cu_array3 *shape, struct sim_array *array)
{
    ENTER();
    if (!shape || !array || array->tag != SIM_ARRAY)
        return CUDA_ERROR_INVALID_HANDLE;
    *shape = array->shape;
    return CUDA_SUCCESS;
}

API CUresult cuArrayGetDescriptor_v2(struct cu_array2 *shape, struct sim_array *array)
{
    ENTER();
    if (!shape || !array || array->tag != SIM_ARRAY)
        return CUDA_ERROR_INVALID_HANDLE;
    *shape = (struct cu_array2){array->shape.width, array->shape.height, array->shape.format, array->shape.channels};
    return CUDA_SUCCESS;
}

/* From one level to the next. */
static void halve(struct cu_array3 *size)
{
    size->width = size->width > 1 ? size->width / 2 : 1;
    size->height = size->height > 1 ? size->height / 2 : size->height;
    size->depth = size->depth > 1 ? size->depth / 2 : size->depth;
}

API CUresult cuMipmappedArrayCreate(struct sim_array **made, const struct cu_array3 *shape, unsigned levels)
{
    ENTER();
    if (!made || !shape || !levels || levels > 32)
        return CUDA_ERROR_INVALID_VALUE;
    LOCKED();
    struct sim_array *array = sim_new(sizeof *array);
    *array = (struct sim_array){.tag = SIM_ARRAY, .shape = *shape, .level = sim_new(levels * sizeof *array->level)};
    uint64_t row, rows, bytes = 0;
    struct cu_array3 size = *shape;
    for (unsigned i = 0; i < levels; i++, halve(&size))
        bytes += shape_bytes(&size, &row, &rows);
    size = *shape;
    for (unsigned i = 0; i < levels; i++, halve(&size)) { /* all levels lie in one allocation: the first has it */
        CUresult result = make(&array->level[i], &size, i ? 0 : backing(shape, bytes));
        if (result) {
            end(array);
            return result;
        }
        array->levels++;
    }
    *made = array;
    return CUDA_SUCCESS;
}

API CUresult cuMipmappedArrayGetLevel(struct sim_array **level, struct sim_array *array, unsigned which)
{
    ENTER();
    if (!level || !array || array->tag != SIM_ARRAY || which >= array->levels)
        return CUDA_ERROR_INVALID_VALUE;
    *level = array->level[which];
    return CUDA_SUCCESS;
}

API CUresult cuMipmappedArrayDestroy(struct sim_array *array)
{
    return cuArrayDestroy(array);
}

struct need { /* CUDA_ARRAY_MEMORY_REQUIREMENTS */
    size_t bytes, alignment;
    unsigned reserved[4];
};

/* What must be mapped to an array that was made without memory. */
API CUresult cuArrayGetMemoryRequirements(struct need *need, struct sim_array *array, CUdevice index)
{
    ENTER();
    struct sim_device *device;
    TRY(sim_check_device(index, &device));
    if (sim_params()->cuda_version < 11060)
        return CUDA_ERROR_NOT_SUPPORTED;
    if (!need || !array || array->tag != SIM_ARRAY || !(array->shape.flags & CU_ARRAY_DEFERRED))
        return CUDA_ERROR_INVALID_VALUE;
    struct cu_array3 size = array->shape;
    uint64_t row, rows, bytes = 0;
    for (unsigned i = 0; i <= array->levels; i++, halve(&size))
        bytes += i < array->levels || !array->levels ? shape_bytes(&size, &row, &rows) : 0;
    *need = (struct need){.bytes = sim_round(bytes, 65536), .alignment = 65536};
    return CUDA_SUCCESS;
}

API CUresult cuMipmappedArrayGetMemoryRequirements(struct need *need, struct sim_array *array, CUdevice index)
{
    return cuArrayGetMemoryRequirements(need, array, index);
}

/* The address of row (y, z) of one side of a copy, 0 if the side makes no sense. */
static CUdeviceptr row_of(const struct cu_end3 *side, uint64_t y, uint64_t z, uint64_t width)
{
    uint64_t pitch = side->pitch ? side->pitch : width;
    if (side->type == CU_MEMORY_ARRAY) {
        const struct sim_array *array = side->array;
        if (!array || array->tag != SIM_ARRAY || !array->range)
            return 0;
        return array->range->base + ((side->z + z) * array->rows + side->y + y) * array->row_bytes + side->x;
    }
    CUdeviceptr base = side->type == CU_MEMORY_HOST ? (CUdeviceptr)side->host : side->device;
    return base ? base + ((side->z + z) * side->height + side->y + y) * pitch + side->x : 0;
}

/* Copy row by row; `ns` is what it costs on the card. */
CUresult sim_move3(const struct cu_copy3 *copy, uint64_t *ns)
{
    struct sim_context *context;
    TRY(sim_current(&context));
    uint64_t depth = copy->depth ? copy->depth : 1, height = copy->height ? copy->height : 1;
    for (uint64_t z = 0; z < depth; z++)
        for (uint64_t y = 0; y < height; y++) {
            CUdeviceptr to = row_of(&copy->to, y, z, copy->width), from = row_of(&copy->from, y, z, copy->width);
            if (!to || !from)
                return CUDA_ERROR_INVALID_VALUE;
            TRY(sim_move(to, from, copy->width));
        }
    *ns = sim_copy_ns(sim_device_of(context), row_of(&copy->to, 0, 0, copy->width),
                      row_of(&copy->from, 0, 0, copy->width), copy->width * height * depth);
    return CUDA_SUCCESS;
}

/* A copy in space, in a stream. */
static CUresult copy_space(const struct cu_copy3 *copy, void *handle, int wait)
{
    ENTER();
    struct sim_stream *stream;
    if (!copy)
        return CUDA_ERROR_INVALID_VALUE;
    TRY(sim_stream_of(handle, &stream));
    struct hw_item work = {.work = HW_COPY};
    TRY(sim_move3(copy, &work.left_ns));
    if (stream->capture) {
        LOCKED();
        return sim_capture_work(stream, CU_NODE_MEMCPY, &work);
    }
    TRY(sim_submit(stream, &work, NULL, NULL));
    return wait ? sim_wait(sim_device_of(stream->context), stream->last) : CUDA_SUCCESS;
}

static struct cu_end3 raise_end(const struct cu_end2 *flat)
{
    return (struct cu_end3){.x = flat->x, .y = flat->y, .type = flat->type, .host = flat->host,
                            .device = flat->device, .array = flat->array, .pitch = flat->pitch};
}

static CUresult copy_plane(const struct cu_copy2 *flat, void *stream, int wait)
{
    if (!flat)
        return CUDA_ERROR_INVALID_VALUE;
    struct cu_copy3 full = {raise_end(&flat->from), raise_end(&flat->to), flat->width, flat->height, 1};
    return copy_space(&full, stream, wait);
}

API CUresult cuMemcpy2D_v2(const struct cu_copy2 *copy)
{
    return copy_plane(copy, NULL, 1);
}

API CUresult cuMemcpy2DUnaligned_v2(const struct cu_copy2 *copy)
{
    return copy_plane(copy, NULL, 1);
}

API CUresult cuMemcpy2DAsync_v2(const struct cu_copy2 *copy, void *stream)
{
    return copy_plane(copy, stream, 0);
}

API CUresult cuMemcpy3D_v2(const struct cu_copy3 *copy)
{
    return copy_space(copy, NULL, 1);
}

API CUresult cuMemcpy3DPeer(const struct cu_copy3 *copy)
{
    return copy_space(copy, NULL, 1);
}

API CUresult cuMemcpy3DAsync_v2(const struct cu_copy3 *copy, void *stream)
{
    return copy_space(copy, stream, 0);
}

API CUresult cuMemcpy3DPeerAsync(const struct cu_copy3 *copy, void *stream)
{
    return copy_space(copy, stream, 0);
}
