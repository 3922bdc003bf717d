/* SPDX-License-Identifier: Apache-2.0 */
/* Types and numbers of NVML, retyped from its documented names and values (NVML API reference,
 * release 13); only what this simulator needs. Return convention of its functions: nvmlReturn_t. */
#ifndef SIMGPU_NVML_H
#define SIMGPU_NVML_H

#include "../hw/hw.h"

#define API __attribute__((visibility("default")))

enum {
    NVML_SUCCESS = 0,
    NVML_UNINITIALIZED = 1,
    NVML_INVALID_ARGUMENT = 2,
    NVML_NOT_SUPPORTED = 3,
    NVML_NO_PERMISSION = 4,
    NVML_NOT_FOUND = 6,
    NVML_INSUFFICIENT_SIZE = 7,
    NVML_DRIVER_NOT_LOADED = 9,
    NVML_TIMEOUT = 10,
    NVML_GPU_IS_LOST = 15,
    NVML_INSUFFICIENT_RESOURCES = 23,
    NVML_VERSION_MISMATCH = 25,
    NVML_UNKNOWN = 999,
};

enum { /* event types */
    NVML_EVENT_SINGLE_BIT_ECC = 1,
    NVML_EVENT_DOUBLE_BIT_ECC = 2,
    NVML_EVENT_XID = 8,
};

struct nvml_device { /* nvmlDevice_t points at one of these */
    uint32_t tag;
    uint32_t card;
};

struct nvml_memory {
    unsigned long long total, free, used;
};

struct nvml_memory2 {
    unsigned version;
    unsigned long long total, reserved, free, used;
};

struct nvml_pci {
    char legacy[16];
    unsigned domain, bus, device, id, subsystem;
    char text[32];
};

struct nvml_process {
    unsigned pid;
    unsigned long long used;
    unsigned gpu_instance, compute_instance;
};

struct nvml_process_sample {
    unsigned pid;
    unsigned long long time;
    unsigned sm, memory, encoder, decoder;
};

struct nvml_process_sample1 { /* nvmlProcessUtilizationInfo_v1_t */
    unsigned long long time;
    unsigned pid, sm, memory, encoder, decoder, jpeg, ofa;
};

struct nvml_process_samples1 {
    unsigned version, count;
    unsigned long long seen;
    struct nvml_process_sample1 *sample;
};

struct nvml_sample {
    unsigned long long time;
    union {
        double d;
        unsigned u;
        unsigned long long ull;
    } value;
};

struct nvml_event {
    struct nvml_device *device;
    unsigned long long type, data;
    unsigned gpu_instance, compute_instance;
};

/* core.c */
extern struct hw nvml_hw;
int nvml_card(struct nvml_device *device, struct hw_card **card);
struct nvml_device *nvml_handle(uint64_t card);
void nvml_leave(struct hw_card **card);
uint64_t nvml_realtime_us(uint64_t ns);

/* Look at a card: brought to the present and held until the end of the block. */
#define LOOK(handle)                                                    \
    struct hw_card *card __attribute__((cleanup(nvml_leave))) = NULL;   \
    do {                                                                \
        int looked_ = nvml_card(handle, &card);                         \
        if (looked_)                                                    \
            return looked_;                                             \
    } while (0)

#define NEED(condition)                   \
    do {                                  \
        if (!(condition))                 \
            return NVML_INVALID_ARGUMENT; \
    } while (0)

#endif
