/* SPDX-License-Identifier: Apache-2.0 */
/* NVML's GPM: activity of a card's parts between two samples, of Hopper and later.
 * Return convention: nvmlReturn_t. */
#include "nvml.h"

#include <stdlib.h>

enum { SM_UTIL = 2, SM_OCCUPANCY = 3, TENSOR_UTIL = 5, DRAM_UTIL = 10 }; /* nvmlGpmMetricId_t */

struct gpm_sample {
    uint64_t clock_ns, busy_ns, copy_ns, tensor_percent;
};

struct gpm_support {
    unsigned version, supported;
};

struct gpm_metrics {
    unsigned version, count;
    struct gpm_sample *first, *second;
    struct {
        unsigned id;
        int status;
        double value;
        const char *names[3];
    } metric[];
};

API int nvmlGpmQueryDeviceSupport(struct nvml_device *device, struct gpm_support *support)
{
    LOOK(device);
    NEED(support);
    support->supported = card->model.cc_major >= 9;
    return NVML_SUCCESS;
}

API int nvmlGpmSampleAlloc(struct gpm_sample **sample)
{
    NEED(sample);
    *sample = calloc(1, sizeof **sample);
    return *sample ? NVML_SUCCESS : NVML_INSUFFICIENT_RESOURCES;
}

API int nvmlGpmSampleFree(struct gpm_sample *sample)
{
    free(sample);
    return NVML_SUCCESS;
}

API int nvmlGpmSampleGet(struct nvml_device *device, struct gpm_sample *sample)
{
    LOOK(device);
    NEED(sample);
    if (card->model.cc_major < 9)
        return NVML_NOT_SUPPORTED;
    *sample = (struct gpm_sample){card->clock_ns, card->busy_ns, card->copy_ns, hw_setting_or(card, HW_TENSOR, 50)};
    return NVML_SUCCESS;
}

/* Percent of the time between the samples. */
API int nvmlGpmMetricsGet(struct gpm_metrics *wanted)
{
    NEED(wanted && wanted->first && wanted->second && wanted->second->clock_ns > wanted->first->clock_ns);
    const struct gpm_sample *from = wanted->first, *to = wanted->second;
    double ns = (double)(to->clock_ns - from->clock_ns);
    double busy = 100.0 * (double)(to->busy_ns - from->busy_ns) / ns;
    double copy = 100.0 * (double)(to->copy_ns - from->copy_ns) / ns;
    for (unsigned i = 0; i < wanted->count; i++) {
        wanted->metric[i].status = NVML_SUCCESS;
        switch (wanted->metric[i].id) {
        case SM_UTIL: wanted->metric[i].value = busy; break;
        case SM_OCCUPANCY: wanted->metric[i].value = busy / 2; break;
        case TENSOR_UTIL: wanted->metric[i].value = busy * (double)to->tensor_percent / 100.0; break;
        case DRAM_UTIL: wanted->metric[i].value = copy; break;
        default: wanted->metric[i].status = NVML_NOT_SUPPORTED;
        }
    }
    return NVML_SUCCESS;
}
