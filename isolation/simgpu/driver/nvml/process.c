/* SPDX-License-Identifier: Apache-2.0 */
/* NVML: which processes use a card, how much of its time and memory, and memory limits.
 * Return convention: nvmlReturn_t. */
#define _GNU_SOURCE
#include "nvml.h"

#include <errno.h>
#include <linux/capability.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Append the processes of one card; `mps`: clients of a server only. */
static void list_card(const struct hw_card *card, int mps, struct nvml_process *out, unsigned room, unsigned *found)
{
    unsigned gi = card->model.parent ? (unsigned)card->model.gpu_instance : UINT32_MAX;
    unsigned ci = card->model.parent ? (unsigned)card->model.compute_instance : UINT32_MAX;
    for (uint64_t i = 0; i < card->clients; i++) {
        const struct hw_client *client = &card->client[i];
        if (client->state != HW_LIVE || !client->total_bytes || (mps && !client->server))
            continue;
        uint64_t bytes = client->total_bytes;
        bytes += nvml_hw.file->params.nvml_imports ? hw_imported(card, client) : 0;
        bytes = nvml_hw.file->params.nvml_no_bytes ? UINT64_MAX : bytes;
        if (out && *found < room)
            out[*found] = (struct nvml_process){(unsigned)client->pid, bytes, gi, ci};
        ++*found;
    }
}

static int card_processes(struct nvml_device *device, int mps, unsigned *count, struct nvml_process *out)
{
    LOOK(device);
    NEED(count);
    unsigned room = out ? *count : 0, found = 0;
    list_card(card, mps, out, room, &found);
    for (uint64_t i = 0; card->model.mig && i < nvml_hw.file->cards; i++)
        if (nvml_hw.file->card[i].model.parent == device->card + 1)
            list_card(&nvml_hw.file->card[i], mps, out, room, &found);
    *count = found;
    return found > room ? NVML_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

static int compute_processes(struct nvml_device *device, unsigned *count, struct nvml_process *out)
{
    return card_processes(device, 0, count, out);
}

/* Nobody draws here. */
static int no_processes(struct nvml_device *device, unsigned *count)
{
    LOOK(device);
    NEED(count);
    *count = 0;
    return NVML_SUCCESS;
}

/* Clients of MPS servers, or everybody where it is said that all are: they stand in both lists. */
static int mps_processes(struct nvml_device *device, unsigned *count, struct nvml_process *out)
{
    return card_processes(device, nvml_hw.file && !nvml_hw.file->params.mps, count, out);
}

#define LISTS(version)                                                                                               \
    API int nvmlDeviceGetComputeRunningProcesses##version(struct nvml_device *device, unsigned *count,               \
                                                          struct nvml_process *out)                                  \
    {                                                                                                                \
        return compute_processes(device, count, out);                                                                \
    }                                                                                                                \
    API int nvmlDeviceGetGraphicsRunningProcesses##version(struct nvml_device *device, unsigned *count, void *out)   \
    {                                                                                                                \
        (void)out;                                                                                                   \
        return no_processes(device, count);                                                                          \
    }                                                                                                                \
    API int nvmlDeviceGetMPSComputeRunningProcesses##version(struct nvml_device *device, unsigned *count,            \
                                                             struct nvml_process *out)                               \
    {                                                                                                                \
        return mps_processes(device, count, out);                                                                    \
    }

LISTS(_v3)
LISTS(_v2)

struct process_v1 { /* the first form ends after the bytes */
    unsigned pid;
    unsigned long long used;
};

API int nvmlDeviceGetComputeRunningProcesses(struct nvml_device *device, unsigned *count, struct process_v1 *out)
{
    struct nvml_process full[HW_CLIENTS];
    NEED(count);
    unsigned room = out ? *count : 0, found = HW_CLIENTS;
    int status = compute_processes(device, &found, full);
    if (status)
        return status;
    for (unsigned i = 0; i < found && i < room; i++)
        out[i] = (struct process_v1){full[i].pid, full[i].used};
    *count = found;
    return found > room ? NVML_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

/* The client's newest sample after `seen` that is old enough to be shown, or -1. */
static int sample_after(const struct hw_card *card, const struct hw_client *client, uint64_t seen)
{
    uint64_t late = nvml_hw.file->params.sample_late_ns;
    for (uint64_t n = client->samples; n-- > 0 && n + HW_SAMPLES >= client->samples;) {
        uint64_t at = n % HW_SAMPLES;
        if (client->sample[at].time_ns + late <= card->clock_ns)
            return nvml_realtime_us(client->sample[at].time_ns) > seen ? (int)at : -1;
    }
    return -1;
}

/* One sample per process that computed since `seen`; NOT_FOUND when none did. */
API int nvmlDeviceGetProcessUtilization(struct nvml_device *device, struct nvml_process_sample *out, unsigned *count,
                                        unsigned long long seen)
{
    LOOK(device);
    NEED(count);
    if (card->model.mig || card->model.parent)
        return NVML_NOT_SUPPORTED;
    unsigned room = out ? *count : 0, found = 0;
    for (uint64_t i = 0; i < card->clients; i++) {
        const struct hw_client *client = &card->client[i];
        int at = client->state == HW_LIVE ? sample_after(card, client, seen) : -1;
        if (at < 0)
            continue;
        if (found < room)
            out[found] = (struct nvml_process_sample){.pid = (unsigned)client->pid,
                                                      .time = nvml_realtime_us(client->sample[at].time_ns),
                                                      .sm = (unsigned)client->sample[at].percent};
        found++;
    }
    *count = found;
    return !found ? NVML_NOT_FOUND : found > room ? NVML_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

API int nvmlDeviceGetProcessesUtilizationInfo(struct nvml_device *device, struct nvml_process_samples1 *info)
{
    struct nvml_process_sample samples[HW_CLIENTS];
    NEED(info);
    if (info->version != (1u << 24 | sizeof *info))
        return NVML_VERSION_MISMATCH;
    unsigned room = info->sample ? info->count : 0, found = HW_CLIENTS;
    int status = nvmlDeviceGetProcessUtilization(device, samples, &found, info->seen);
    if (status)
        return status;
    for (unsigned i = 0; i < found && i < room; i++)
        info->sample[i] = (struct nvml_process_sample1){.time = samples[i].time, .pid = samples[i].pid,
                                                        .sm = samples[i].sm};
    info->count = found;
    return found > room ? NVML_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

struct process_detail {
    unsigned pid;
    unsigned long long used;
    unsigned gpu_instance, compute_instance;
    unsigned long long protected_bytes;
};

struct process_details {
    unsigned version, mode, count;
    struct process_detail *entry;
};

API int nvmlDeviceGetRunningProcessDetailList(struct nvml_device *device, struct process_details *list)
{
    struct nvml_process full[HW_CLIENTS];
    NEED(list);
    if (list->version != (1u << 24 | sizeof *list))
        return NVML_VERSION_MISMATCH;
    unsigned room = list->entry ? list->count : 0, found = HW_CLIENTS;
    if (list->mode) /* 0 compute, 1 graphics, 2 MPS */
        return list->mode > 2 ? NVML_INVALID_ARGUMENT : no_processes(device, &list->count);
    int status = compute_processes(device, &found, full);
    if (status)
        return status;
    for (unsigned i = 0; i < found && i < room; i++)
        list->entry[i] = (struct process_detail){full[i].pid, full[i].used, full[i].gpu_instance,
                                                 full[i].compute_instance, 0};
    list->count = found;
    return found > room ? NVML_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

struct set_limits { /* nvmlSetMemoryLimits_v1_t, driver 615 */
    const char *name;
    unsigned long long soft, hard;
};

struct get_limits {
    const char *name;
    unsigned long long soft, hard, used;
};

/* Whether this process may administer the machine: root, with the capability that containers are not given. */
static int may_administer(void)
{
    struct __user_cap_header_struct head = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct sets[2];
    return geteuid() == 0 && syscall(SYS_capget, &head, sets) == 0 && (sets[0].effective >> CAP_SYS_ADMIN & 1);
}

/* The card can limit memory at all: "MIG handles are not supported". */
static int limits_memory(const struct hw_card *card)
{
    const struct hw_params *params = &nvml_hw.file->params;
    return params->cuda_version >= 13040 && params->memacct && !card->model.mig && !card->model.parent;
}

/* The status for a group that cannot be opened. */
static int no_group(int error)
{
    return error == -ENOENT || error == -ENOTDIR || error == -ENOTSUP ? NVML_NOT_FOUND
           : error == -EACCES || error == -EPERM                      ? NVML_NO_PERMISSION
                                                                      : NVML_INVALID_ARGUMENT;
}

static int status_of(int error)
{
    return !error             ? NVML_SUCCESS
           : error == -EPERM  ? NVML_NO_PERMISSION
           : error == -ENOENT ? NVML_NOT_FOUND
           : error == -ENOSPC ? NVML_INSUFFICIENT_RESOURCES
                              : NVML_UNKNOWN;
}

static struct hw_limit *spare_limit(struct hw_card *card)
{
    for (int i = 0; i < HW_LIMITS; i++)
        if (card->limit[i].used && hw_cgroup_gone(card->limit[i].name, card->limit[i].group))
            hw_put(card, &card->limit[i].used, 0);
    hw_commit(card);
    for (int i = 0; i < HW_LIMITS; i++)
        if (!card->limit[i].used)
            return &card->limit[i];
    return NULL;
}

/*
 * Limit what a control group and those below it may have on a card. NVIDIA NVML API reference v615,
 * nvmlSetMemoryLimits_v1_t: the name is the full path of the group's directory; soft 0 with hard MAX clears the limits,
 * as does removing the group; root only. A hard limit of 0 is one of no bytes.
 */
API int nvmlDeviceSetMemoryLimits_v1(struct nvml_device *device, const struct set_limits *limits)
{
    LOOK(device);
    NEED(limits && limits->name && *limits->name && strlen(limits->name) < HW_PATH);
    if (!limits_memory(card))
        return NVML_NOT_SUPPORTED;
    if (!may_administer())
        return NVML_NO_PERMISSION;
    NEED(limits->soft <= limits->hard);
    uint64_t group;
    int fd = hw_cgroup_open(limits->name, &group);
    if (fd < 0)
        return no_group(fd);
    if (hw_owned(&nvml_hw)) {
        struct hw_answer answer;
        int error = hw_ask(&nvml_hw, card, HW_SET_LIMIT, limits->soft, limits->hard, fd, &answer);
        close(fd);
        return status_of(error);
    }
    close(fd);
    int clear = !limits->soft && limits->hard == HW_NO_LIMIT;
    struct hw_limit *entry = hw_limit_of(card, group);
    if (!entry && clear)
        return NVML_SUCCESS;
    if (!entry)
        entry = spare_limit(card);
    if (!entry)
        return NVML_INSUFFICIENT_RESOURCES;
    strcpy(entry->name, limits->name);
    hw_put(card, &entry->group, group);
    hw_put(card, &entry->soft_bytes, limits->soft);
    hw_put(card, &entry->hard_bytes, limits->hard);
    hw_put(card, &entry->used, !clear);
    return NVML_SUCCESS;
}

/* What a group is limited to, any user; without a limit soft 0 and hard MAX (nvmlGetMemoryLimits_v1_t). */
API int nvmlDeviceGetMemoryLimits_v1(struct nvml_device *device, struct get_limits *limits)
{
    LOOK(device);
    NEED(limits && limits->name);
    if (!limits_memory(card))
        return NVML_NOT_SUPPORTED;
    uint64_t group;
    int fd = hw_cgroup_open(limits->name, &group);
    if (fd < 0)
        return no_group(fd);
    if (hw_owned(&nvml_hw)) {
        struct hw_answer answer;
        int error = hw_ask(&nvml_hw, card, HW_GET_LIMIT, 0, 0, fd, &answer);
        close(fd);
        if (!error) {
            limits->soft = answer.a;
            limits->hard = answer.b;
            limits->used = answer.c;
        }
        return status_of(error);
    }
    close(fd);
    const struct hw_limit *entry = hw_limit_of(card, group);
    const struct hw_limit none = {.group = group, .hard_bytes = HW_NO_LIMIT};
    entry = entry ? entry : &none;
    limits->soft = entry->soft_bytes;
    limits->hard = entry->hard_bytes;
    limits->used = hw_limit_used(card, entry);
    return NVML_SUCCESS;
}
