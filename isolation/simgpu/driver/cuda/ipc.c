/* SPDX-License-Identifier: Apache-2.0 */
/* The older inter-process sharing: a handle of 64 bytes names an allocation of another process.
 * Contents are not shared, only lifetime and books. Return convention: CUresult. */
#define _GNU_SOURCE
#include "context.h"
#include "device.h"
#include "event.h"
#include "memory.h"
#include "sim.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define IPC_MAGIC 0x4350494755504753ull
#define EVENT_MAGIC 0x4556454755504753ull

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
    if (hw_hold(&sim_hw, device->card, device->client, handle.object, handle.generation)) {
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

/* A page that processes share: the work that an event stands for is an entry of some process's queue, and those lie
 * in the card's file. */
struct sim_shared_event {
    uint64_t card, client, born_ns, seq; /* seq 0: never recorded */
};

API CUresult cuIpcGetEventHandle(struct handle *handle, struct sim_event *event)
{
    ENTER();
    LOCKED();
    enum { INTERPROCESS = 4 };
    if (!handle || !event || event->tag != SIM_EVENT || !(event->flags & INTERPROCESS))
        return CUDA_ERROR_INVALID_VALUE;
    static int fds[1024]; /* kept open: others open them by the number */
    static unsigned count;
    if (!event->shared) {
        int fd = count < sizeof fds / sizeof *fds ? memfd_create("simgpu-event", MFD_CLOEXEC) : -1;
        if (fd < 0 || ftruncate(fd, 4096))
            return CUDA_ERROR_OPERATING_SYSTEM;
        void *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        if (page == MAP_FAILED)
            return CUDA_ERROR_OPERATING_SYSTEM;
        event->shared = page;
        event->id = (uint64_t)fd;
        fds[count++] = fd;
        if (event->state == 1)
            sim_event_tell(event, sim_device_of(event->context));
    }
    *handle = (struct handle){.magic = EVENT_MAGIC, .object = event->id, .process = (uint64_t)getpid()};
    return CUDA_SUCCESS;
}

API CUresult cuIpcOpenEventHandle(struct sim_event **event, struct handle handle)
{
    ENTER();
    struct sim_context *context;
    TRY(sim_current(&context));
    if (!event || handle.magic != EVENT_MAGIC)
        return CUDA_ERROR_INVALID_VALUE;
    if (handle.process == (uint64_t)getpid())
        return CUDA_ERROR_INVALID_CONTEXT; /* not in the exporting process */
    char path[64];
    snprintf(path, sizeof path, "/proc/%llu/fd/%llu", (unsigned long long)handle.process,
             (unsigned long long)handle.object);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    void *page = fd < 0 ? MAP_FAILED : mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (fd >= 0)
        close(fd);
    if (page == MAP_FAILED)
        return CUDA_ERROR_INVALID_VALUE; /* its process is gone */
    *event = sim_new(sizeof **event);
    **event = (struct sim_event){.tag = SIM_EVENT, .context = context, .flags = 6, .shared = page};
    return CUDA_SUCCESS;
}

/* The event was recorded as this process's `seq` on a card. */
void sim_event_tell(struct sim_event *event, struct sim_device *device)
{
    *event->shared = (struct sim_shared_event){(uint64_t)device->index,
                                               (uint64_t)(device->client - device->card->client),
                                               device->client->born_ns, event->seq};
}

/* Was it recorded by another process than ours? */
int sim_event_foreign(const struct sim_event *event, const struct sim_device *device)
{
    const struct sim_shared_event *shared = event->shared;
    return shared && shared->seq &&
           (!device->client || shared->client != (uint64_t)(device->client - device->card->client) ||
            shared->born_ns != device->client->born_ns);
}

/* Has a shared event happened? One of a process that is gone has. */
int sim_event_happened(const struct sim_event *event)
{
    struct sim_shared_event shared = *event->shared;
    if (!shared.seq || shared.card >= sim_hw.file->cards || shared.client >= HW_CLIENTS)
        return 1;
    struct hw_card *card = &sim_hw.file->card[shared.card];
    hw_lock(card);
    hw_advance(&sim_hw, card, hw_now(&sim_hw));
    struct hw_client *client = &card->client[shared.client];
    int done = client->state != HW_LIVE || client->born_ns != shared.born_ns || shared.seq < client->head ||
               hw_item(client, shared.seq)->state == HW_DONE;
    hw_unlock(card);
    return done;
}
