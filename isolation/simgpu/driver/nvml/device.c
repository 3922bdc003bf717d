/* SPDX-License-Identifier: Apache-2.0 */
/* NVML: what a card is and how it is doing.
 * Return convention: nvmlReturn_t. */
#include "nvml.h"

#include <stdio.h>
#include <string.h>

static int put_text(char *text, unsigned size, const char *value)
{
    NEED(text);
    return snprintf(text, size, "%s", value) < (int)size ? NVML_SUCCESS : NVML_INSUFFICIENT_SIZE;
}

API int nvmlDeviceGetName(struct nvml_device *device, char *text, unsigned size)
{
    LOOK(device);
    char name[2 * HW_NAME + 8];
    const char *profile = card->model.parent ? card->model.profile : "";
    snprintf(name, sizeof name, "%s%s%s", card->model.name, *profile ? " MIG " : "", profile);
    return put_text(text, size, name);
}

API int nvmlDeviceGetUUID(struct nvml_device *device, char *text, unsigned size)
{
    LOOK(device);
    char uuid[64];
    hw_uuid(&card->model, uuid, sizeof uuid);
    return put_text(text, size, uuid);
}

API int nvmlDeviceGetSerial(struct nvml_device *device, char *text, unsigned size)
{
    LOOK(device);
    return put_text(text, size, card->model.serial);
}

API int nvmlDeviceGetIndex(struct nvml_device *device, unsigned *index)
{
    LOOK(device);
    NEED(index);
    *index = device->card;
    if (card->model.parent) /* its number among the instances of its card, which stand one after another */
        for (*index = 0; nvml_hw.file->card[device->card - *index - 1].model.parent == card->model.parent;)
            ++*index;
    return NVML_SUCCESS;
}

API int nvmlDeviceGetMinorNumber(struct nvml_device *device, unsigned *minor)
{
    LOOK(device);
    NEED(minor);
    if (card->model.parent)
        return NVML_NOT_SUPPORTED;
    *minor = device->card;
    return NVML_SUCCESS;
}

API int nvmlDeviceGetBrand(struct nvml_device *device, int *brand)
{
    LOOK(device);
    NEED(brand);
    *brand = (int)card->model.brand;
    return NVML_SUCCESS;
}

API int nvmlDeviceGetArchitecture(struct nvml_device *device, unsigned *architecture)
{
    LOOK(device);
    NEED(architecture);
    *architecture = (unsigned)card->model.architecture;
    return NVML_SUCCESS;
}

API int nvmlDeviceGetPciInfo_v3(struct nvml_device *device, struct nvml_pci *pci)
{
    LOOK(device);
    NEED(pci);
    const struct hw_model *m = &card->model;
    memset(pci, 0, sizeof *pci);
    pci->domain = (unsigned)m->pci_domain;
    pci->bus = (unsigned)m->pci_bus;
    pci->device = (unsigned)m->pci_device;
    pci->id = (unsigned)m->pci_id;
    pci->subsystem = (unsigned)m->pci_subsystem;
    snprintf(pci->legacy, sizeof pci->legacy, "%04X:%02X:%02X.0", pci->domain & 0xFFFF, pci->bus & 0xFF,
             pci->device & 0xFF);
    snprintf(pci->text, sizeof pci->text, "%08X:%02X:%02X.0", pci->domain, pci->bus, pci->device);
    return NVML_SUCCESS;
}

API int nvmlDeviceGetPciInfo_v2(struct nvml_device *device, struct nvml_pci *pci)
{
    return nvmlDeviceGetPciInfo_v3(device, pci);
}

API int nvmlDeviceGetPciInfo(struct nvml_device *device, struct nvml_pci *pci)
{
    return nvmlDeviceGetPciInfo_v3(device, pci);
}

API int nvmlDeviceGetCudaComputeCapability(struct nvml_device *device, int *major, int *minor)
{
    LOOK(device);
    NEED(major && minor);
    *major = (int)card->model.cc_major;
    *minor = (int)card->model.cc_minor;
    return NVML_SUCCESS;
}

/* Bytes used on a card; a divided card has what its instances have. */
static uint64_t used_bytes(const struct nvml_device *device, const struct hw_card *card)
{
    uint64_t used = card->used_bytes;
    for (uint64_t i = 0; card->model.mig && i < nvml_hw.file->cards; i++)
        if (nvml_hw.file->card[i].model.parent == device->card + 1)
            used += nvml_hw.file->card[i].used_bytes;
    return used;
}

API int nvmlDeviceGetMemoryInfo(struct nvml_device *device, struct nvml_memory *memory)
{
    LOOK(device);
    NEED(memory);
    uint64_t used = used_bytes(device, card) + card->model.reserved_bytes; /* v1: reserved counts as used */
    *memory = (struct nvml_memory){card->model.total_bytes, card->model.total_bytes - used, used};
    return NVML_SUCCESS;
}

API int nvmlDeviceGetMemoryInfo_v2(struct nvml_device *device, struct nvml_memory2 *memory)
{
    LOOK(device);
    NEED(memory);
    if (memory->version != (2u << 24 | sizeof *memory))
        return NVML_VERSION_MISMATCH;
    uint64_t used = used_bytes(device, card), reserved = card->model.reserved_bytes;
    memory->total = card->model.total_bytes;
    memory->reserved = reserved;
    memory->used = used;
    memory->free = card->model.total_bytes - used - reserved;
    return NVML_SUCCESS;
}

API int nvmlDeviceGetBAR1MemoryInfo(struct nvml_device *device, struct nvml_memory *bar)
{
    LOOK(device);
    NEED(bar);
    uint64_t total = card->model.total_bytes < (16ull << 30) ? 256ull << 20 : 128ull << 30;
    *bar = (struct nvml_memory){total, total - (2ull << 20), 2ull << 20};
    return NVML_SUCCESS;
}

/* The newest utilisation sample that is old enough to be shown. */
static int latest(const struct hw_card *card, unsigned *gpu, unsigned *memory)
{
    uint64_t late = nvml_hw.file->params.sample_late_ns;
    *gpu = *memory = 0;
    for (uint64_t n = card->samples; n-- > 0 && n + HW_SAMPLES > card->samples;) {
        uint64_t at = n % HW_SAMPLES;
        if (card->sample[at].time_ns + late > card->clock_ns)
            continue;
        *gpu = (unsigned)card->sample[at].percent;
        *memory = (unsigned)card->sample[at].memory_percent;
        return 1;
    }
    return 0;
}

API int nvmlDeviceGetUtilizationRates(struct nvml_device *device, unsigned *rates)
{
    LOOK(device);
    NEED(rates);
    if (card->model.mig || card->model.parent)
        return NVML_NOT_SUPPORTED; /* as on divided cards */
    latest(card, &rates[0], &rates[1]);
    return NVML_SUCCESS;
}

/* Samples after `seen`, oldest first; types 1 (GPU) and 2 (memory) utilisation, 0 (total power, mW). */
API int nvmlDeviceGetSamples(struct nvml_device *device, int type, unsigned long long seen, int *value_type,
                             unsigned *count, struct nvml_sample *samples)
{
    LOOK(device);
    NEED(count && value_type);
    if (type < 0 || type > 2)
        return NVML_NOT_SUPPORTED;
    *value_type = 1; /* unsigned int */
    unsigned room = samples ? *count : 0, found = 0;
    uint64_t late = nvml_hw.file->params.sample_late_ns;
    const struct hw_model *m = &card->model;
    uint64_t n = card->samples > HW_SAMPLES ? card->samples - HW_SAMPLES : 0;
    for (; n < card->samples; n++) {
        uint64_t at = n % HW_SAMPLES, time = nvml_realtime_us(card->sample[at].time_ns);
        if (time <= seen || card->sample[at].time_ns + late > card->clock_ns)
            continue;
        uint64_t load = card->sample[at].percent, mw = m->idle_mw + (m->limit_mw - m->idle_mw) * load / 100;
        if (found < room) {
            samples[found].time = time;
            samples[found].value.ull = type == 0 ? mw : type == 1 ? load : card->sample[at].memory_percent;
        }
        found++;
    }
    *count = found;
    if (!found)
        return NVML_NOT_FOUND;
    return !samples || room >= found ? NVML_SUCCESS : NVML_INSUFFICIENT_SIZE;
}

API int nvmlDeviceGetPowerUsage(struct nvml_device *device, unsigned *mw)
{
    LOOK(device);
    NEED(mw);
    if (card->model.parent)
        return NVML_NOT_SUPPORTED;
    unsigned gpu, memory;
    latest(card, &gpu, &memory);
    *mw = (unsigned)(card->model.idle_mw + (card->model.limit_mw - card->model.idle_mw) * gpu / 100);
    return NVML_SUCCESS;
}

API int nvmlDeviceGetTotalEnergyConsumption(struct nvml_device *device, unsigned long long *mj)
{
    LOOK(device);
    NEED(mj);
    *mj = card->energy_uj / 1000;
    return NVML_SUCCESS;
}

/* Power limits in mW: management limit, enforced, default. */
static int power_limit(struct nvml_device *device, unsigned *mw)
{
    LOOK(device);
    NEED(mw);
    *mw = (unsigned)card->model.limit_mw;
    return NVML_SUCCESS;
}

API int nvmlDeviceGetPowerManagementLimit(struct nvml_device *device, unsigned *mw)
{
    return power_limit(device, mw);
}

API int nvmlDeviceGetEnforcedPowerLimit(struct nvml_device *device, unsigned *mw)
{
    return power_limit(device, mw);
}

API int nvmlDeviceGetPowerManagementDefaultLimit(struct nvml_device *device, unsigned *mw)
{
    return power_limit(device, mw);
}

API int nvmlDeviceGetTemperature(struct nvml_device *device, int sensor, unsigned *degrees)
{
    LOOK(device);
    NEED(degrees && !sensor);
    *degrees = (unsigned)(card->temperature_mc / 1000);
    return NVML_SUCCESS;
}

struct temperature {
    unsigned version;
    int sensor, degrees;
};

API int nvmlDeviceGetTemperatureV(struct nvml_device *device, struct temperature *temperature)
{
    LOOK(device);
    NEED(temperature && !temperature->sensor);
    if (temperature->version != (1u << 24 | sizeof *temperature))
        return NVML_VERSION_MISMATCH;
    temperature->degrees = (int)(card->temperature_mc / 1000);
    return NVML_SUCCESS;
}

API int nvmlDeviceGetTemperatureThreshold(struct nvml_device *device, int which, unsigned *degrees)
{
    LOOK(device);
    NEED(degrees);
    static const unsigned DEGREES[] = {93, 90, 88, 83};
    if (which < 0 || which > 3)
        return NVML_NOT_SUPPORTED;
    *degrees = DEGREES[which];
    return NVML_SUCCESS;
}

/* Clock in MHz: 0 graphics, 1 SM, 2 memory, 3 video. An idle card is slow. */
static unsigned clock_of(const struct hw_card *card, int which, int busy)
{
    if (which == 2)
        return (unsigned)card->model.memory_mhz;
    return (unsigned)(busy ? card->model.sm_mhz : 345);
}

API int nvmlDeviceGetClockInfo(struct nvml_device *device, int which, unsigned *mhz)
{
    LOOK(device);
    NEED(mhz && which >= 0 && which <= 3);
    unsigned gpu, memory;
    latest(card, &gpu, &memory);
    *mhz = clock_of(card, which, gpu > 0);
    return NVML_SUCCESS;
}

API int nvmlDeviceGetMaxClockInfo(struct nvml_device *device, int which, unsigned *mhz)
{
    LOOK(device);
    NEED(mhz && which >= 0 && which <= 3);
    *mhz = clock_of(card, which, 1);
    return NVML_SUCCESS;
}

API int nvmlDeviceGetClock(struct nvml_device *device, int which, int id, unsigned *mhz)
{
    return id ? nvmlDeviceGetMaxClockInfo(device, which, mhz) : nvmlDeviceGetClockInfo(device, which, mhz);
}

API int nvmlDeviceGetApplicationsClock(struct nvml_device *device, int which, unsigned *mhz)
{
    return nvmlDeviceGetMaxClockInfo(device, which, mhz);
}

API int nvmlDeviceGetPerformanceState(struct nvml_device *device, int *state)
{
    LOOK(device);
    NEED(state);
    unsigned gpu, memory;
    latest(card, &gpu, &memory);
    *state = gpu ? 0 : 8;
    return NVML_SUCCESS;
}

API int nvmlDeviceGetCurrentClocksEventReasons(struct nvml_device *device, unsigned long long *reasons)
{
    LOOK(device);
    NEED(reasons);
    unsigned gpu, memory;
    latest(card, &gpu, &memory);
    *reasons = card->throttle | (gpu || card->throttle ? 0 : 1); /* 1: idle */
    return NVML_SUCCESS;
}

API int nvmlDeviceGetCurrentClocksThrottleReasons(struct nvml_device *device, unsigned long long *reasons)
{
    return nvmlDeviceGetCurrentClocksEventReasons(device, reasons);
}

API int nvmlDeviceGetSupportedClocksEventReasons(struct nvml_device *device, unsigned long long *reasons)
{
    LOOK(device);
    NEED(reasons);
    *reasons = 0x1EF;
    return NVML_SUCCESS;
}

API int nvmlDeviceGetSupportedClocksThrottleReasons(struct nvml_device *device, unsigned long long *reasons)
{
    return nvmlDeviceGetSupportedClocksEventReasons(device, reasons);
}
