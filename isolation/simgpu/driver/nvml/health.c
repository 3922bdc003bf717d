/* SPDX-License-Identifier: Apache-2.0 */
/* NVML: ECC, errors, modes and links; most of it is constant on a simulated card.
 * Return convention: nvmlReturn_t. */
#include "nvml.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

API int nvmlDeviceGetEccMode(struct nvml_device *device, int *current, int *pending)
{
    LOOK(device);
    NEED(current && pending);
    *current = *pending = 1;
    return NVML_SUCCESS;
}

API int nvmlDeviceGetTotalEccErrors(struct nvml_device *device, int type, int counter, unsigned long long *count)
{
    LOOK(device);
    NEED(count && (type == 0 || type == 1) && (counter == 0 || counter == 1));
    *count = type ? card->ecc_uncorrected : card->ecc_corrected;
    return NVML_SUCCESS;
}

API int nvmlDeviceGetMemoryErrorCounter(struct nvml_device *device, int type, int counter, int location,
                                        unsigned long long *count)
{
    if (location != 2) /* only device memory fails here */
        return NVML_NOT_SUPPORTED;
    return nvmlDeviceGetTotalEccErrors(device, type, counter, count);
}

API int nvmlDeviceGetRetiredPagesPendingStatus(struct nvml_device *device, int *pending)
{
    LOOK(device);
    NEED(pending);
    *pending = 0;
    return NVML_SUCCESS;
}

API int nvmlDeviceGetRemappedRows(struct nvml_device *device, unsigned *corrected, unsigned *uncorrected,
                                  unsigned *pending, unsigned *failed)
{
    LOOK(device);
    NEED(corrected && uncorrected && pending && failed);
    if (card->model.cc_major < 8)
        return NVML_NOT_SUPPORTED;
    *corrected = (unsigned)hw_setting_or(card, HW_REMAPPED, 0);
    *pending = (unsigned)hw_setting_or(card, HW_REMAP_PENDING, 0);
    *failed = (unsigned)hw_setting_or(card, HW_REMAP_FAILED, 0);
    *uncorrected = (unsigned)card->ecc_uncorrected;
    return NVML_SUCCESS;
}

/* A figure that never changes. */
#define CONSTANT(name, type, value)                      \
    API int name(struct nvml_device *device, type *out)  \
    {                                                    \
        LOOK(device);                                    \
        NEED(out);                                       \
        *out = (type)(value);                            \
        return NVML_SUCCESS;                             \
    }

CONSTANT(nvmlDeviceGetPersistenceMode, int, 1)
CONSTANT(nvmlDeviceGetComputeMode, int, card->mode)
CONSTANT(nvmlDeviceGetDisplayMode, int, 0)
CONSTANT(nvmlDeviceGetDisplayActive, int, 0)
CONSTANT(nvmlDeviceGetPowerManagementMode, int, 1)
CONSTANT(nvmlDeviceGetVirtualizationMode, int, 0)
CONSTANT(nvmlDeviceGetMultiGpuBoard, unsigned, 0)
CONSTANT(nvmlDeviceGetBoardId, unsigned, card->model.pci_bus << 8)
CONSTANT(nvmlDeviceGetMemoryBusWidth, unsigned, card->model.bus_bits)
CONSTANT(nvmlDeviceGetNumGpuCores, unsigned, card->model.cores)
CONSTANT(nvmlDeviceGetNumFans, unsigned, 0)
CONSTANT(nvmlDeviceGetCurrPcieLinkGeneration, unsigned, card->model.pcie_generation)
CONSTANT(nvmlDeviceGetMaxPcieLinkGeneration, unsigned, card->model.pcie_generation)
CONSTANT(nvmlDeviceGetGpuMaxPcieLinkGeneration, unsigned, card->model.pcie_generation)
CONSTANT(nvmlDeviceGetCurrPcieLinkWidth, unsigned, 16)
CONSTANT(nvmlDeviceGetMaxPcieLinkWidth, unsigned, 16)
CONSTANT(nvmlDeviceGetPcieReplayCounter, unsigned, hw_setting_or(card, HW_PCIE_REPLAYS, 0))

/* Root alone may; processes that have contexts keep them. */
API int nvmlDeviceSetComputeMode(struct nvml_device *device, int mode)
{
    LOOK(device);
    NEED(mode >= HW_SHARED && mode <= HW_EXCLUSIVE);
    if (geteuid() != 0)
        return NVML_NO_PERMISSION;
    if (mode != HW_SHARED && mode != HW_PROHIBITED && mode != HW_EXCLUSIVE) /* exclusive by thread: withdrawn */
        return NVML_NOT_SUPPORTED;
    hw_put(card, &card->mode, (uint64_t)mode);
    return NVML_SUCCESS;
}

API int nvmlDeviceGetPowerManagementLimitConstraints(struct nvml_device *device, unsigned *least, unsigned *most)
{
    LOOK(device);
    NEED(least && most);
    *least = (unsigned)card->model.limit_mw / 2;
    *most = (unsigned)card->model.limit_mw;
    return NVML_SUCCESS;
}

/* Encoder and decoder do what they were told to: percent, and the sampling period in microseconds. */
static int engine(struct nvml_device *device, enum hw_setting which, unsigned *percent, unsigned *period_us)
{
    LOOK(device);
    NEED(percent && period_us);
    *percent = (unsigned)hw_setting_or(card, which, 0);
    *period_us = (unsigned)(nvml_hw.file->params.sample_ns / 1000);
    return NVML_SUCCESS;
}

API int nvmlDeviceGetEncoderUtilization(struct nvml_device *device, unsigned *percent, unsigned *period_us)
{
    return engine(device, HW_ENCODER, percent, period_us);
}

API int nvmlDeviceGetDecoderUtilization(struct nvml_device *device, unsigned *percent, unsigned *period_us)
{
    return engine(device, HW_DECODER, percent, period_us);
}

API int nvmlDeviceGetPcieThroughput(struct nvml_device *device, int direction, unsigned *kbps)
{
    LOOK(device);
    NEED(kbps);
    (void)direction;
    *kbps = 0;
    return NVML_SUCCESS;
}

API int nvmlDeviceGetViolationStatus(struct nvml_device *device, int policy, unsigned long long *status)
{
    LOOK(device);
    NEED(status);
    (void)policy;
    status[0] = nvml_realtime_us(card->clock_ns);
    status[1] = 0;
    return NVML_SUCCESS;
}

API int nvmlDeviceGetVbiosVersion(struct nvml_device *device, char *text, unsigned size)
{
    LOOK(device);
    NEED(text);
    return snprintf(text, size, "00.00.00.00.01") < (int)size ? NVML_SUCCESS : NVML_INSUFFICIENT_SIZE;
}

#define MAX_LINKS 18 /* of Hopper's cards */

API int nvmlDeviceGetNvLinkState(struct nvml_device *device, unsigned link, int *active)
{
    LOOK(device);
    NEED(active);
    if (!card->setting[HW_NVLINK_LINKS])
        return NVML_NOT_SUPPORTED;
    NEED(link < MAX_LINKS);
    *active = link < hw_setting_or(card, HW_NVLINK_LINKS, 0);
    return NVML_SUCCESS;
}

/* Links between cards go through the host bridge. */
API int nvmlDeviceGetTopologyCommonAncestor(struct nvml_device *one, struct nvml_device *other, int *level)
{
    LOOK(one);
    NEED(other && level);
    *level = one == other ? 0 : 30;
    return NVML_SUCCESS;
}

struct field { /* nvmlFieldValue_t */
    unsigned id, scope;
    long long time_us, latency_us;
    int type, status;
    unsigned long long value;
};

/* What only some cards and drivers tell: those on which it was set. */
static void set_or_unsupported(struct field *f, const struct hw_card *card, enum hw_setting what)
{
    f->value = hw_setting_or(card, what, 0);
    f->status = card->setting[what] ? NVML_SUCCESS : NVML_NOT_SUPPORTED;
}

API int nvmlDeviceGetFieldValues(struct nvml_device *device, int count, struct field *fields)
{
    LOOK(device);
    NEED(fields && count > 0);
    for (int i = 0; i < count; i++) {
        struct field *f = &fields[i];
        f->time_us = (long long)nvml_realtime_us(card->clock_ns);
        f->latency_us = 0;
        f->type = 3; /* unsigned long long */
        f->status = NVML_SUCCESS;
        switch (f->id) {
        case 1: case 2: f->value = 1; break;                               /* ECC mode */
        case 3: case 5: f->value = card->ecc_corrected; break;             /* volatile, aggregate */
        case 4: case 6: f->value = card->ecc_uncorrected; break;
        case 29: f->value = hw_setting_or(card, HW_RETIRED_SINGLE, 0); break;    /* retired pages */
        case 30: f->value = hw_setting_or(card, HW_RETIRED_DOUBLE, 0); break;
        case 82: f->value = hw_setting_or(card, HW_MEMORY_CELSIUS, card->temperature_mc / 1000 + 8); break;
        case 173: f->value = hw_setting_or(card, HW_PCIE_CORRECTABLE, 0); break;
        case 179: f->value = hw_setting_or(card, HW_PCIE_NON_FATAL, 0); break;
        case 180: f->value = hw_setting_or(card, HW_PCIE_FATAL, 0); break;
        case 197: case 198: f->value = card->copy_ns / 1000 * card->model.copy_mbps / 2; break; /* bytes each way */
        case 38: set_or_unsupported(f, card, HW_NVLINK_ERRORS); break;            /* CRC of flow control */
        case 138: case 139: set_or_unsupported(f, card, HW_NVLINK_KIB); break;
        case 230: set_or_unsupported(f, card, HW_RECOVERY_ACTION); break;
        case 83: f->value = card->energy_uj / 1000; break;                 /* energy since load, mJ */
        default: f->status = NVML_NOT_SUPPORTED;
        }
    }
    return NVML_SUCCESS;
}
