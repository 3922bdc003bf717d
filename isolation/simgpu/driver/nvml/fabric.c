/* SPDX-License-Identifier: Apache-2.0 */
/* NVML: the fabric of NVLink between machines, which no simulated card is part of.
 * Return convention: nvmlReturn_t. */
#include "nvml.h"

#include <stddef.h>
#include <string.h>

struct fabric { /* nvmlGpuFabricInfo_t */
    unsigned char cluster[16];
    int status;
    unsigned clique;
    unsigned char state; /* 0: not supported by the machine */
};

struct fabric_v { /* nvmlGpuFabricInfo_v2_t and _v3_t, which has `summary` */
    unsigned version;
    unsigned char cluster[16];
    int status;
    unsigned clique;
    unsigned char state;
    unsigned health;
    unsigned char summary;
};

/* Cards from 9.0 on could be part of one. */
static int can(const struct hw_card *card)
{
    return card->model.cc_major >= 9 ? NVML_SUCCESS : NVML_NOT_SUPPORTED;
}

API int nvmlDeviceGetGpuFabricInfo(struct nvml_device *device, struct fabric *info)
{
    LOOK(device);
    NEED(info);
    if (!can(card))
        *info = (struct fabric){0};
    return can(card);
}

API int nvmlDeviceGetGpuFabricInfoV(struct nvml_device *device, struct fabric_v *info)
{
    LOOK(device);
    NEED(info);
    unsigned version = info->version;
    size_t bytes = version == (2u << 24 | offsetof(struct fabric_v, summary)) ? offsetof(struct fabric_v, summary)
                   : version == (3u << 24 | sizeof *info)                     ? sizeof *info
                                                                              : 0;
    if (!bytes)
        return NVML_VERSION_MISMATCH;
    if (!can(card))
        memcpy(info, &(struct fabric_v){.version = version}, bytes);
    return can(card);
}
