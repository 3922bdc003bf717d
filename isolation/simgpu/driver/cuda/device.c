/* SPDX-License-Identifier: Apache-2.0 */
/* What a device is: names, ids, attributes, peers. Figures come from the model in the hardware file.
 * Return convention: CUresult. */
#include "device.h"
#include "sim.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* The device with this ordinal. */
CUresult sim_check_device(CUdevice device, struct sim_device **found)
{
    if (device < 0 || device >= sim_devices)
        return CUDA_ERROR_INVALID_DEVICE;
    *found = sim_device[device];
    return CUDA_SUCCESS;
}

API CUresult cuDeviceGet(CUdevice *device, int ordinal)
{
    ENTER();
    struct sim_device *found;
    if (!device)
        return CUDA_ERROR_INVALID_VALUE;
    TRY(sim_check_device(ordinal, &found));
    *device = ordinal;
    return CUDA_SUCCESS;
}

API CUresult cuDeviceGetCount(int *count)
{
    ENTER();
    if (!count)
        return CUDA_ERROR_INVALID_VALUE;
    *count = sim_devices;
    return CUDA_SUCCESS;
}

API CUresult cuDeviceGetName(char *name, int size, CUdevice index)
{
    ENTER();
    struct sim_device *device;
    TRY(sim_check_device(index, &device));
    if (!name || size <= 0)
        return CUDA_ERROR_INVALID_VALUE;
    const struct hw_model *model = &device->card->model;
    snprintf(name, (size_t)size, "%s%s%s", model->name, *model->profile ? " MIG " : "", model->profile);
    return CUDA_SUCCESS;
}

API CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice index)
{
    ENTER();
    struct sim_device *device;
    TRY(sim_check_device(index, &device));
    if (!uuid)
        return CUDA_ERROR_INVALID_VALUE;
    memcpy(uuid->bytes, device->card->model.uuid, 16);
    return CUDA_SUCCESS;
}

/* The first form: the UUID of the physical card, also for a MIG instance. */
API CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice index)
{
    ENTER();
    struct sim_device *device;
    TRY(sim_check_device(index, &device));
    if (!uuid)
        return CUDA_ERROR_INVALID_VALUE;
    const struct hw_model *model = &device->card->model;
    if (model->parent)
        model = &sim_hw.file->card[model->parent - 1].model;
    memcpy(uuid->bytes, model->uuid, 16);
    return CUDA_SUCCESS;
}

API CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice index)
{
    ENTER();
    struct sim_device *device;
    TRY(sim_check_device(index, &device));
    if (!bytes)
        return CUDA_ERROR_INVALID_VALUE;
    *bytes = device->card->model.total_bytes - device->card->model.reserved_bytes;
    return CUDA_SUCCESS;
}

API CUresult cuDeviceTotalMem(size_t *bytes, CUdevice index)
{
    return cuDeviceTotalMem_v2(bytes, index);
}

API CUresult cuDeviceComputeCapability(int *major, int *minor, CUdevice index)
{
    ENTER();
    struct sim_device *device;
    TRY(sim_check_device(index, &device));
    if (!major || !minor)
        return CUDA_ERROR_INVALID_VALUE;
    *major = (int)device->card->model.cc_major;
    *minor = (int)device->card->model.cc_minor;
    return CUDA_SUCCESS;
}

/* Attributes that are the same for every model of this simulator (CUdevice_attribute). */
static int common_attribute(int attribute)
{
    static const int TABLE[][2] = {
        {1, 1024},       {2, 1024},    {3, 1024},       {4, 64},      {5, 2147483647}, {6, 65535},   {7, 65535},
        {8, 49152},      {9, 65536},   {10, 32},        {11, 2147483647}, {12, 65536}, {14, 512},    {15, 1},
        {19, 1},         {21, 131072}, {22, 131072},    {23, 65536},  {24, 16384},     {25, 16384},  {26, 16384},
        {27, 32768},     {28, 32768},  {29, 2048},      {30, 512},    {31, 1},         {32, 1},      {40, 3},
        {41, 1},         {51, 32},     {69, 268435456}, {70, 131072}, {71, 65000},     {72, 2097120}, {78, 1},
        {79, 1},         {80, 1},      {82, 65536},     {83, 1},      {87, 2},         {89, 1},      {90, 1},
        {91, 1},         {95, 1},      {96, 1},         {99, 1},      {102, 1},        {103, 1},     {106, 32},
        {111, 1024},     {114, 1},     {115, 1},        {119, 1},     {122, 1},        {123, 1},     {129, 1},
        {131, -1},       {134, -1},
    };
    for (size_t i = 0; i < sizeof TABLE / sizeof *TABLE; i++)
        if (TABLE[i][0] == attribute)
            return TABLE[i][1];
    return 0;
}

API CUresult cuDeviceGetAttribute(int *value, int attribute, CUdevice index)
{
    ENTER();
    struct sim_device *device;
    TRY(sim_check_device(index, &device));
    if (!value || attribute < 1 || attribute > 161)
        return CUDA_ERROR_INVALID_VALUE;
    const struct hw_model *m = &device->card->model;
    uint64_t cap = sim_hw.mps.pid ? hw_cap(device->card, sim_hw.mps.percent) : 0;
    switch (attribute) {
    case 13: *value = (int)m->sm_mhz * 1000; break;
    case 16: *value = (int)(cap ? m->sms * cap / 1000000 : m->sms); break;
    case 33: *value = (int)m->pci_bus; break;
    case 34: *value = (int)m->pci_device; break;
    case 36: *value = (int)m->memory_mhz * 1000; break;
    case 37: *value = (int)m->bus_bits; break;
    case 38: *value = (int)m->l2_bytes; break;
    case 39: *value = (int)m->threads_per_sm; break;
    case 50: *value = (int)m->pci_domain; break;
    case 75: *value = (int)m->cc_major; break;
    case 76: *value = (int)m->cc_minor; break;
    case 81: *value = (int)m->shared_bytes; break;
    case 97: *value = (int)m->shared_bytes - 1024; break;
    case 120: *value = m->cc_major >= 9; break;
    case 139: *value = (int)m->pci_id; break;
    case 140: *value = (int)m->pci_subsystem; break;
    default: *value = common_attribute(attribute);
    }
    return CUDA_SUCCESS;
}

API CUresult cuDeviceGetProperties(int *properties, CUdevice index)
{
    static const int ATTRIBUTES[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14};
    for (int i = 0; i < 14; i++)
        TRY(cuDeviceGetAttribute(&properties[i], ATTRIBUTES[i], index));
    return CUDA_SUCCESS;
}

API CUresult cuDeviceGetPCIBusId(char *text, int size, CUdevice index)
{
    ENTER();
    struct sim_device *device;
    TRY(sim_check_device(index, &device));
    const struct hw_model *m = &device->card->model;
    if (!text || size < 13)
        return CUDA_ERROR_INVALID_VALUE;
    snprintf(text, (size_t)size, "%04X:%02X:%02X.0", (unsigned)m->pci_domain, (unsigned)m->pci_bus,
             (unsigned)m->pci_device);
    return CUDA_SUCCESS;
}

API CUresult cuDeviceGetByPCIBusId(CUdevice *found, const char *text)
{
    ENTER();
    unsigned domain = 0, bus, slot;
    if (!found || !text)
        return CUDA_ERROR_INVALID_VALUE;
    if (sscanf(text, "%x:%x:%x", &domain, &bus, &slot) != 3) {
        domain = 0;
        if (sscanf(text, "%x:%x", &bus, &slot) != 2)
            return CUDA_ERROR_INVALID_VALUE;
    }
    for (int i = 0; i < sim_devices; i++) {
        const struct hw_model *m = &sim_device[i]->card->model;
        if (m->pci_domain == domain && m->pci_bus == bus && m->pci_device == slot) {
            *found = i;
            return CUDA_SUCCESS;
        }
    }
    return CUDA_ERROR_INVALID_DEVICE;
}

API CUresult cuDeviceCanAccessPeer(int *can, CUdevice one, CUdevice other)
{
    ENTER();
    struct sim_device *a, *b;
    TRY(sim_check_device(one, &a));
    TRY(sim_check_device(other, &b));
    if (!can)
        return CUDA_ERROR_INVALID_VALUE;
    *can = a != b && !a->card->model.parent && !b->card->model.parent;
    return CUDA_SUCCESS;
}

API CUresult cuDeviceGetP2PAttribute(int *value, int attribute, CUdevice one, CUdevice other)
{
    if (!value || attribute < 1 || attribute > 5)
        return CUDA_ERROR_INVALID_VALUE;
    int can = 0;
    TRY(cuDeviceCanAccessPeer(&can, one, other));
    *value = attribute == 2 ? can : 0; /* access, without atomics */
    return CUDA_SUCCESS;
}

API CUresult cuDeviceGetExecAffinitySupport(int *supported, int type, CUdevice index)
{
    ENTER();
    struct sim_device *device;
    TRY(sim_check_device(index, &device));
    if (!supported || type)
        return CUDA_ERROR_INVALID_VALUE;
    *supported = 0; /* only under MPS */
    return CUDA_SUCCESS;
}
