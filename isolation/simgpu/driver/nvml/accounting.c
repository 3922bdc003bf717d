/* SPDX-License-Identifier: Apache-2.0 */
/* NVML: accounts of processes, kept until their entry is used again; on with the parameter `accounting`.
 * Return convention: nvmlReturn_t. */
#include "nvml.h"

struct account { /* nvmlAccountingStats_t */
    unsigned gpu_percent, memory_percent;
    unsigned long long most_bytes, time_ms, start_us;
    unsigned running, reserved[5];
};

API int nvmlDeviceGetAccountingMode(struct nvml_device *device, int *mode)
{
    LOOK(device);
    NEED(mode);
    *mode = nvml_hw.file->params.accounting != 0;
    return NVML_SUCCESS;
}

API int nvmlDeviceGetAccountingBufferSize(struct nvml_device *device, unsigned *size)
{
    LOOK(device);
    NEED(size);
    *size = HW_CLIENTS;
    return NVML_SUCCESS;
}

API int nvmlDeviceGetAccountingPids(struct nvml_device *device, unsigned *count, unsigned *pids)
{
    LOOK(device);
    NEED(count);
    if (!nvml_hw.file->params.accounting)
        return NVML_NOT_SUPPORTED;
    unsigned room = pids ? *count : 0, found = 0;
    for (uint64_t i = 0; i < card->clients; i++) {
        if (card->client[i].state == HW_FREE)
            continue;
        if (found < room)
            pids[found] = (unsigned)card->client[i].pid;
        found++;
    }
    *count = found;
    return found > room ? NVML_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

/* The newest process of that pid, alive or gone. */
API int nvmlDeviceGetAccountingStats(struct nvml_device *device, unsigned pid, struct account *account)
{
    LOOK(device);
    NEED(account);
    if (!nvml_hw.file->params.accounting)
        return NVML_NOT_SUPPORTED;
    const struct hw_client *found = NULL;
    for (uint64_t i = 0; i < card->clients; i++) {
        const struct hw_client *client = &card->client[i];
        if (client->state != HW_FREE && client->pid == pid && (!found || client->born_ns > found->born_ns))
            found = client;
    }
    if (!found)
        return NVML_NOT_FOUND;
    uint64_t end = found->state == HW_LIVE ? card->clock_ns : found->gone_ns;
    uint64_t lived = end > found->born_ns ? end - found->born_ns : 0;
    *account = (struct account){
        .gpu_percent = lived ? (unsigned)(found->own_ns * 100 / lived) : 0,
        .most_bytes = found->peak_bytes,
        .time_ms = found->state == HW_LIVE ? 0 : lived / 1000000,
        .start_us = nvml_realtime_us(found->born_ns),
        .running = found->state == HW_LIVE,
    };
    return NVML_SUCCESS;
}
