/* The older inter-process sharing: a handle of 64 bytes names an allocation of another process.
 * Contents are not shared, only lifetime and books. Return convention: CUresult. */
#include "sim.h"

#include <string.h>
#include <unistd.h>

#define IPC_MAGIC 0x4350494755504753ull

struct handle { /* CUipcMemHandle: 64 bytes, opaque */
    uint64_t magic, card, object, generation, offset, bytes, process, spare;
};
_Static_assert(sizeof(struct handle) == 64, "CUipcMemHandle is 64 bytes");

/* Make the range an entry of the card's table; once. */
static CUresult share(struct sim_range *range)
{
    struct sim_device *device = sim_device[range->device];
    if (range->object)
        return CUDA_SUCCESS;
    CARD_LOCKED(device);
    int object = hw_share(device->card, device->client, range->hw_kind, range->charged_bytes);
    if (object < 0)
        return CUDA_ERROR_OUT_OF_MEMORY;
    range->object = (uint64_t)object + 1;
    range->generation = device->card->object[object].generation;
    return CUDA_SUCCESS;
}

/* This process lets a shared range go: exporter or importer. */
CUresult sim_unshare(struct sim_device *device, struct sim_range *range)
{
    CARD_LOCKED(device);
    hw_drop(&sim_hw, device->card, device->client, range->object - 1);
    range->object = 0;
    return CUDA_SUCCESS;
}

API CUresult cuIpcGetMemHandle(struct handle *handle, CUdeviceptr pointer)
{
    ENTER();
    LOCKED();
    struct sim_range *range = sim_range_at(pointer);
    if (!handle || !range || (range->kind != SIM_RANGE_DATA && range->kind != SIM_RANGE_SLAB))
        return CUDA_ERROR_INVALID_VALUE;
    TRY(share(range));
    *handle = (struct handle){IPC_MAGIC, (uint64_t)sim_device[range->device]->index, range->object - 1,
                              range->generation, pointer - range->base, range->bytes, (uint64_t)getpid(), 0};
    return CUDA_SUCCESS;
}

API CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *pointer, struct handle handle, unsigned flags)
{
    ENTER();
    struct sim_context *context;
    TRY(sim_current(&context));
    struct sim_device *device = sim_device_of(context);
    if (!pointer || flags > 1 || handle.magic != IPC_MAGIC)
        return CUDA_ERROR_INVALID_VALUE;
    if (handle.process == (uint64_t)getpid())
        return CUDA_ERROR_INVALID_CONTEXT; /* not in the exporting process */
    if (handle.card != (uint64_t)device->index)
        return CUDA_ERROR_INVALID_VALUE;
    LOCKED();
    struct sim_range *range = sim_range_new(SIM_RANGE_IMPORT, context, handle.bytes);
    if (!range)
        return CUDA_ERROR_MAP_FAILED;
    CARD_LOCKED(device);
    if (hw_hold(device->card, device->client, handle.object, handle.generation)) {
        sim_range_end(range);
        return CUDA_ERROR_INVALID_VALUE;
    }
    range->object = handle.object + 1;
    range->generation = handle.generation;
    *pointer = range->base + handle.offset;
    return CUDA_SUCCESS;
}

API CUresult cuIpcOpenMemHandle(CUdeviceptr *pointer, struct handle handle, unsigned flags)
{
    return cuIpcOpenMemHandle_v2(pointer, handle, flags);
}

API CUresult cuIpcCloseMemHandle(CUdeviceptr pointer)
{
    ENTER();
    LOCKED();
    struct sim_range *range = sim_range_at(pointer);
    if (!range || range->kind != SIM_RANGE_IMPORT)
        return CUDA_ERROR_INVALID_VALUE;
    return sim_free(range);
}
