/* SPDX-License-Identifier: Apache-2.0 */
/* NVML: start and stop, handles of cards, names of errors.
 * Return convention: nvmlReturn_t. */
#define _GNU_SOURCE
#include "nvml.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>
#include <unistd.h>

enum { DEVICE_TAG = 0x4E564D4C };

struct hw nvml_hw;
static struct nvml_device devices[HW_MAX_CARDS];
static int users;
static int orphaned; /* the driver went away under us: only a new start helps */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* Injected trouble of the driver as a whole: it hangs, or answers an error and forgets its users. */
static int troubled(void)
{
    while (__atomic_load_n(&nvml_hw.file->params.nvml_hang, __ATOMIC_ACQUIRE))
        nanosleep(&(struct timespec){0, 5000000}, NULL);
    int status = (int)__atomic_load_n(&nvml_hw.file->params.nvml_status, __ATOMIC_ACQUIRE);
    if (status)
        orphaned = 1;
    return status ? status : orphaned ? NVML_UNINITIALIZED : NVML_SUCCESS;
}

/* Map the box for the first user, unless the driver is in trouble. */
static int begin(void)
{
    char path[4096];
    if (hw_path(path, sizeof path, (const void *)nvml_card) || hw_open(&nvml_hw, path))
        return NVML_DRIVER_NOT_LOADED;
    orphaned = 0;
    int status = troubled();
    if (status)
        hw_close(&nvml_hw);
    return status;
}

/* Several users in one process share one mapping; the last one ends it. */
API int nvmlInitWithFlags(unsigned flags)
{
    (void)flags;
    pthread_mutex_lock(&lock);
    int status = users ? NVML_SUCCESS : begin();
    users += !status;
    pthread_mutex_unlock(&lock);
    return status;
}

API int nvmlInit_v2(void)
{
    return nvmlInitWithFlags(0);
}

API int nvmlInit(void)
{
    return nvmlInitWithFlags(0);
}

API int nvmlShutdown(void)
{
    int status = NVML_SUCCESS;
    pthread_mutex_lock(&lock);
    if (!users)
        status = NVML_UNINITIALIZED;
    else if (--users == 0)
        hw_close(&nvml_hw);
    pthread_mutex_unlock(&lock);
    return status;
}

struct nvml_device *nvml_handle(uint64_t card)
{
    devices[card] = (struct nvml_device){DEVICE_TAG, (uint32_t)card};
    return &devices[card];
}

/* The card behind a handle, held and brought to the present; a lost one says so. */
int nvml_card(struct nvml_device *device, struct hw_card **card)
{
    if (!nvml_hw.file)
        return NVML_UNINITIALIZED;
    if (!device || device->tag != DEVICE_TAG || device->card >= nvml_hw.file->cards)
        return NVML_INVALID_ARGUMENT;
    int trouble = troubled();
    if (trouble)
        return trouble;
    hw_spin(nvml_hw.file->params.nvml_ns);
    struct hw_card *found = &nvml_hw.file->card[device->card];
    if (found->fault == HW_FAULT_LOST)
        return NVML_GPU_IS_LOST;
    hw_lock(found);
    hw_advance(&nvml_hw, found, hw_now(&nvml_hw));
    *card = found;
    return NVML_SUCCESS;
}

/* End of a look at a card. */
void nvml_leave(struct hw_card **card)
{
    if (*card)
        hw_unlock(*card);
}

/* Device clock to the microseconds since 1970 that NVML stamps samples with. */
uint64_t nvml_realtime_us(uint64_t ns)
{
    return (ns + nvml_hw.file->realtime_ns) / 1000;
}

API int nvmlDeviceGetCount_v2(unsigned *count)
{
    if (!nvml_hw.file)
        return NVML_UNINITIALIZED;
    NEED(count);
    int trouble = troubled();
    if (trouble)
        return trouble;
    *count = 0;
    for (uint64_t i = 0; i < nvml_hw.file->cards; i++)
        *count += !nvml_hw.file->card[i].model.parent;
    return NVML_SUCCESS;
}

API int nvmlDeviceGetCount(unsigned *count)
{
    return nvmlDeviceGetCount_v2(count);
}

API int nvmlDeviceGetHandleByIndex_v2(unsigned index, struct nvml_device **device)
{
    unsigned count;
    int status = nvmlDeviceGetCount_v2(&count);
    if (status)
        return status;
    NEED(device && index < count);
    *device = nvml_handle(index);
    return nvml_hw.file->card[index].fault == HW_FAULT_LOST ? NVML_GPU_IS_LOST : NVML_SUCCESS;
}

API int nvmlDeviceGetHandleByIndex(unsigned index, struct nvml_device **device)
{
    return nvmlDeviceGetHandleByIndex_v2(index, device);
}

API int nvmlDeviceGetHandleByUUID(const char *uuid, struct nvml_device **device)
{
    if (!nvml_hw.file)
        return NVML_UNINITIALIZED;
    NEED(uuid && device);
    for (uint64_t i = 0; i < nvml_hw.file->cards; i++) {
        char text[64];
        hw_uuid(&nvml_hw.file->card[i].model, text, sizeof text);
        if (!strcasecmp(text, uuid)) {
            *device = nvml_handle(i);
            return NVML_SUCCESS;
        }
    }
    return NVML_NOT_FOUND;
}

API int nvmlDeviceGetHandleBySerial(const char *serial, struct nvml_device **device)
{
    if (!nvml_hw.file)
        return NVML_UNINITIALIZED;
    NEED(serial && device);
    for (uint64_t i = 0; i < nvml_hw.file->cards; i++)
        if (!strcmp(nvml_hw.file->card[i].model.serial, serial)) {
            *device = nvml_handle(i);
            return NVML_SUCCESS;
        }
    return NVML_NOT_FOUND;
}

API int nvmlDeviceGetHandleByPciBusId_v2(const char *text, struct nvml_device **device)
{
    unsigned domain = 0, bus, slot;
    if (!nvml_hw.file)
        return NVML_UNINITIALIZED;
    NEED(text && device);
    if (sscanf(text, "%x:%x:%x", &domain, &bus, &slot) != 3) {
        domain = 0;
        NEED(sscanf(text, "%x:%x", &bus, &slot) == 2);
    }
    for (uint64_t i = 0; i < nvml_hw.file->cards; i++) {
        const struct hw_model *model = &nvml_hw.file->card[i].model;
        if (!model->parent && model->pci_domain == domain && model->pci_bus == bus && model->pci_device == slot) {
            *device = nvml_handle(i);
            return NVML_SUCCESS;
        }
    }
    return NVML_NOT_FOUND;
}

API int nvmlDeviceGetHandleByPciBusId(const char *text, struct nvml_device **device)
{
    return nvmlDeviceGetHandleByPciBusId_v2(text, device);
}

API int nvmlSystemGetDriverVersion(char *text, unsigned size)
{
    if (!nvml_hw.file)
        return NVML_UNINITIALIZED;
    NEED(text);
    return snprintf(text, size, "%s", nvml_hw.file->driver) < (int)size ? NVML_SUCCESS : NVML_INSUFFICIENT_SIZE;
}

API int nvmlSystemGetNVMLVersion(char *text, unsigned size)
{
    if (!nvml_hw.file)
        return NVML_UNINITIALIZED;
    NEED(text);
    int length = snprintf(text, size, "%d.%s", (int)nvml_hw.file->params.cuda_version / 1000, nvml_hw.file->driver);
    return length < (int)size ? NVML_SUCCESS : NVML_INSUFFICIENT_SIZE;
}

API int nvmlSystemGetCudaDriverVersion_v2(int *version)
{
    if (!nvml_hw.file)
        return NVML_UNINITIALIZED;
    NEED(version);
    *version = (int)nvml_hw.file->params.cuda_version;
    return NVML_SUCCESS;
}

API int nvmlSystemGetCudaDriverVersion(int *version)
{
    return nvmlSystemGetCudaDriverVersion_v2(version);
}

API int nvmlSystemGetProcessName(unsigned pid, char *text, unsigned size)
{
    char path[64], name[512];
    if (!nvml_hw.file)
        return NVML_UNINITIALIZED;
    NEED(text && size);
    snprintf(path, sizeof path, "/proc/%u/cmdline", pid);
    FILE *file = fopen(path, "re");
    if (!file)
        return NVML_NOT_FOUND;
    size_t n = fread(name, 1, sizeof name - 1, file);
    fclose(file);
    name[n] = 0;
    snprintf(text, size, "%s", name);
    return NVML_SUCCESS;
}

API const char *nvmlErrorString(int status)
{
    static const char *const TEXTS[] = {
        [NVML_SUCCESS] = "The operation was successful",
        [NVML_UNINITIALIZED] = "Uninitialized",
        [NVML_INVALID_ARGUMENT] = "Invalid Argument",
        [NVML_NOT_SUPPORTED] = "Not Supported",
        [NVML_NO_PERMISSION] = "Insufficient Permissions",
        [NVML_NOT_FOUND] = "Not Found",
        [NVML_INSUFFICIENT_SIZE] = "Insufficient Size",
        [NVML_DRIVER_NOT_LOADED] = "Driver Not Loaded",
        [NVML_TIMEOUT] = "Timeout",
        [NVML_GPU_IS_LOST] = "GPU is lost",
        [NVML_INSUFFICIENT_RESOURCES] = "Insufficient Resources",
        [NVML_VERSION_MISMATCH] = "Argument version mismatch",
    };
    int known = status >= 0 && status < (int)(sizeof TEXTS / sizeof *TEXTS) && TEXTS[status];
    return known ? TEXTS[status] : "Unknown Error";
}
