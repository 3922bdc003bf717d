/* SPDX-License-Identifier: Apache-2.0 */
/* The part of NVML that the library wraps or calls, written from the documented names and
 * numbers (NVML API reference manual).
 */
#ifndef GS_NVML_SUBSET_H
#define GS_NVML_SUBSET_H

#include <stdint.h>

typedef int nvmlReturn;
typedef struct gs_opaque_device *nvmlDevice;

enum {
    NVML_SUCCESS = 0,
    NVML_ERROR_INVALID_ARGUMENT = 2,
    NVML_ERROR_NOT_FOUND = 6,
    NVML_ERROR_INSUFFICIENT_SIZE = 7
};

struct nvml_memory { uint64_t total, free, used; };
struct nvml_memory2 { uint32_t version; uint64_t total, reserved, free, used; };
struct nvml_process1 { uint32_t pid; uint64_t used; };
struct nvml_process2 { uint32_t pid; uint64_t used; uint32_t gpu_instance, compute_instance; };
struct nvml_detail { uint32_t pid; uint64_t used; uint32_t gpu_instance, compute_instance; uint64_t protected; };
struct nvml_details { uint32_t version, mode, count; struct nvml_detail *list; }; /* nvmlProcessDetailList_v1_t */
struct nvml_sample { uint32_t pid; uint64_t time; uint32_t sm, memory, encoder, decoder; };
struct nvml_sample1 { uint64_t time; uint32_t pid, sm, memory, encoder, decoder, jpeg, ofa; };
struct nvml_samples1 { uint32_t version, count; uint64_t since; struct nvml_sample1 *list; };
struct nvml_account { uint32_t sm, memory; uint64_t peak, ms, start; uint32_t running, reserved[5]; };
struct nvml_account2 { /* nvmlAccountingStats_v2_t */
    uint32_t pid, running, sm, memory;
    uint64_t peak;
    uint32_t samples;
    uint64_t sum_sm, sum_memory, ms, start;
};

#define GS_NVML(name, ...) extern nvmlReturn name(__VA_ARGS__)
GS_NVML(nvmlDeviceGetUUID, nvmlDevice, char *, unsigned);
GS_NVML(nvmlDeviceGetCount, unsigned *);
GS_NVML(nvmlDeviceGetCount_v2, unsigned *);
GS_NVML(nvmlDeviceGetHandleByIndex, unsigned, nvmlDevice *);
GS_NVML(nvmlDeviceGetHandleByIndex_v2, unsigned, nvmlDevice *);
GS_NVML(nvmlDeviceGetHandleByUUID, const char *, nvmlDevice *);
GS_NVML(nvmlDeviceGetHandleBySerial, const char *, nvmlDevice *);
GS_NVML(nvmlDeviceGetHandleByPciBusId, const char *, nvmlDevice *);
GS_NVML(nvmlDeviceGetHandleByPciBusId_v2, const char *, nvmlDevice *);
GS_NVML(nvmlDeviceGetIndex, nvmlDevice, unsigned *);
GS_NVML(nvmlInternalGetExportTable, const void **, const uint8_t *);
GS_NVML(nvmlDeviceGetMigMode, nvmlDevice, unsigned *, unsigned *);
GS_NVML(nvmlDeviceGetMaxMigDeviceCount, nvmlDevice, unsigned *);
GS_NVML(nvmlDeviceGetMigDeviceHandleByIndex, nvmlDevice, unsigned, nvmlDevice *);
GS_NVML(nvmlDeviceGetMemoryInfo, nvmlDevice, struct nvml_memory *);
GS_NVML(nvmlDeviceGetMemoryInfo_v2, nvmlDevice, struct nvml_memory2 *);
#define GS_NVML_LIST(kind, type) GS_NVML(nvmlDeviceGet##kind, nvmlDevice, unsigned *, type *)
GS_NVML_LIST(ComputeRunningProcesses, struct nvml_process1);
GS_NVML_LIST(ComputeRunningProcesses_v2, struct nvml_process2);
GS_NVML_LIST(ComputeRunningProcesses_v3, struct nvml_process2);
GS_NVML_LIST(GraphicsRunningProcesses, struct nvml_process1);
GS_NVML_LIST(GraphicsRunningProcesses_v2, struct nvml_process2);
GS_NVML_LIST(GraphicsRunningProcesses_v3, struct nvml_process2);
GS_NVML_LIST(MPSComputeRunningProcesses, struct nvml_process1);
GS_NVML_LIST(MPSComputeRunningProcesses_v2, struct nvml_process2);
GS_NVML_LIST(MPSComputeRunningProcesses_v3, struct nvml_process2);
GS_NVML_LIST(AccountingPids, uint32_t);
GS_NVML(nvmlDeviceGetRunningProcessDetailList, nvmlDevice, struct nvml_details *);
GS_NVML(nvmlDeviceGetProcessUtilization, nvmlDevice, struct nvml_sample *, unsigned *, uint64_t);
GS_NVML(nvmlDeviceGetProcessesUtilizationInfo, nvmlDevice, struct nvml_samples1 *);
GS_NVML(nvmlDeviceGetAccountingStats, nvmlDevice, unsigned, struct nvml_account *);
GS_NVML(nvmlDeviceGetAccountingStats_v2, nvmlDevice, struct nvml_account2 *);

#endif
