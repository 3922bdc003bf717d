/* SPDX-License-Identifier: Apache-2.0 */
/* NVML: divided cards. Instances are made when the hardware file is, and stay.
 * Return convention: nvmlReturn_t. */
#include "nvml.h"

API int nvmlDeviceGetMigMode(struct nvml_device *device, unsigned *current, unsigned *pending)
{
    LOOK(device);
    NEED(current && pending);
    if (card->model.cc_major < 8 || card->model.cc_minor)
        return NVML_NOT_SUPPORTED;
    *current = *pending = (unsigned)card->model.mig;
    return NVML_SUCCESS;
}

API int nvmlDeviceIsMigDeviceHandle(struct nvml_device *device, unsigned *is)
{
    LOOK(device);
    NEED(is);
    *is = card->model.parent != 0;
    return NVML_SUCCESS;
}

API int nvmlDeviceGetMaxMigDeviceCount(struct nvml_device *device, unsigned *count)
{
    LOOK(device);
    NEED(count);
    *count = card->model.mig ? 7 : 0;
    return NVML_SUCCESS;
}

API int nvmlDeviceGetMigDeviceHandleByIndex(struct nvml_device *device, unsigned index, struct nvml_device **instance)
{
    LOOK(device);
    NEED(instance);
    for (uint64_t i = 0; i < nvml_hw.file->cards; i++)
        if (nvml_hw.file->card[i].model.parent == device->card + 1 && index-- == 0) {
            *instance = nvml_handle(i);
            return NVML_SUCCESS;
        }
    return card->model.mig ? NVML_NOT_FOUND : NVML_NOT_SUPPORTED;
}

API int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(struct nvml_device *instance, struct nvml_device **device)
{
    LOOK(instance);
    NEED(device && card->model.parent);
    *device = nvml_handle(card->model.parent - 1);
    return NVML_SUCCESS;
}

API int nvmlDeviceGetGpuInstanceId(struct nvml_device *instance, unsigned *id)
{
    LOOK(instance);
    NEED(id);
    if (!card->model.parent)
        return NVML_NOT_SUPPORTED;
    *id = (unsigned)card->model.gpu_instance;
    return NVML_SUCCESS;
}

API int nvmlDeviceGetComputeInstanceId(struct nvml_device *instance, unsigned *id)
{
    LOOK(instance);
    NEED(id);
    if (!card->model.parent)
        return NVML_NOT_SUPPORTED;
    *id = (unsigned)card->model.compute_instance;
    return NVML_SUCCESS;
}

struct attributes { /* nvmlDeviceAttributes_t */
    unsigned sms, copy, decoder, encoder, jpeg, ofa, gpu_slices, compute_slices;
    unsigned long long memory_mib;
};

API int nvmlDeviceGetAttributes_v2(struct nvml_device *device, struct attributes *attributes)
{
    LOOK(device);
    NEED(attributes);
    unsigned gpu = (unsigned)card->model.gpu_slices, compute = (unsigned)card->model.compute_slices;
    *attributes = (struct attributes){.sms = (unsigned)card->model.sms, .copy = compute ? compute : 1,
                                      .gpu_slices = gpu ? gpu : 1, .compute_slices = compute ? compute : 1,
                                      .memory_mib = card->model.total_bytes >> 20};
    return NVML_SUCCESS;
}
