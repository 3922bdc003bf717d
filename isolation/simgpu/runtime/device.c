/* SPDX-License-Identifier: Apache-2.0 */
/* What can be asked of devices and of errors. */
#include "runtime.h"

#include <string.h>

struct properties { /* cudaDeviceProp */
    char name[256], uuid[16], luid[8];
    unsigned node_mask;
#define S(field, attribute) size_t field;
#define I(field, attribute) int field;
#define A(field, count, attribute) int field[count];
#include "properties.def"
    int reserved[RUNTIME == 12 ? 63 : 56];
};

#if RUNTIME == 12
_Static_assert(sizeof(struct properties) == 1032, "cudaDeviceProp of CUDA 12");
#else
_Static_assert(sizeof(struct properties) == 1008, "cudaDeviceProp of CUDA 13");
#endif

enum { OF_SIZE_T, OF_INTS };

static const struct {
    size_t offset;
    int form, count, attribute;
} FIELDS[] = {
#define S(field, attribute) {offsetof(struct properties, field), OF_SIZE_T, 1, attribute},
#define I(field, attribute) {offsetof(struct properties, field), OF_INTS, 1, attribute},
#define A(field, count, attribute) {offsetof(struct properties, field), OF_INTS, count, attribute},
#include "properties.def"
};

static cudaError_t fill(struct properties *properties, int device)
{
    cudaError_t result = rt_start();
    if (!result && !properties)
        result = cudaErrorInvalidValue;
    if (result)
        return result;
    memset(properties, 0, sizeof *properties);
    result = cu.cuDeviceGetName(properties->name, sizeof properties->name, device);
    if (!result)
        result = cu.cuDeviceGetUuid(properties->uuid, device);
    for (size_t i = 0; !result && i < sizeof FIELDS / sizeof *FIELDS; i++)
        for (int k = 0; !result && k < FIELDS[i].count; k++) {
            char *at = (char *)properties + FIELDS[i].offset;
            int value = 0;
            if (FIELDS[i].attribute)
                result = cu.cuDeviceGetAttribute(&value, FIELDS[i].attribute + k, device);
            if (FIELDS[i].form == OF_SIZE_T)
                memcpy(at, &(size_t){(size_t)value}, sizeof(size_t));
            else
                memcpy(at + (size_t)k * sizeof value, &value, sizeof value);
        }
    return result ? result : cu.cuDeviceTotalMem(&properties->totalGlobalMem, device);
}

#if RUNTIME == 12
API cudaError_t cudaGetDeviceProperties_v2(struct properties *properties, int device)
{
    return rt_result(fill(properties, device));
}
#else
API cudaError_t cudaGetDeviceProperties(struct properties *properties, int device)
{
    return rt_result(fill(properties, device));
}
#endif

API cudaError_t cudaDeviceGetAttribute(int *value, int attribute, int device)
{
    START(cu.cuDeviceGetAttribute(value, attribute, device));
}

API cudaError_t cudaDeviceGetPCIBusId(char *text, int size, int device)
{
    START(cu.cuDeviceGetPCIBusId(text, size, device));
}

API cudaError_t cudaDeviceGetByPCIBusId(int *device, const char *text)
{
    START(cu.cuDeviceGetByPCIBusId(device, text));
}

API cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer)
{
    START(cu.cuDeviceCanAccessPeer(can, device, peer));
}

API cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned flags)
{
    void *context = NULL;
    ENTER(rt_primary(peer, &context) ? cudaErrorInvalidDevice : cu.cuCtxEnablePeerAccess(context, flags));
}

API cudaError_t cudaDeviceDisablePeerAccess(int peer)
{
    void *context = NULL;
    ENTER(rt_primary(peer, &context) ? cudaErrorInvalidDevice : cu.cuCtxDisablePeerAccess(context));
}

API cudaError_t cudaDeviceGetLimit(size_t *value, int limit)
{
    ENTER(cu.cuCtxGetLimit(value, limit));
}

API cudaError_t cudaDeviceSetLimit(int limit, size_t value)
{
    ENTER(cu.cuCtxSetLimit(limit, value));
}

API cudaError_t cudaSetDeviceFlags(unsigned flags)
{
    START(cu.cuDevicePrimaryCtxSetFlags(rt_device(), flags));
}

API cudaError_t cudaGetDeviceFlags(unsigned *flags)
{
    int active;
    START(cu.cuDevicePrimaryCtxGetState(rt_device(), flags, &active));
}

static const struct {
    int code;
    const char *name;
} ERRORS[] = {
#define E(code, name) {code, #name},
#include "errors.def"
};

API const char *cudaGetErrorName(cudaError_t error)
{
    for (size_t i = 0; i < sizeof ERRORS / sizeof *ERRORS; i++)
        if (ERRORS[i].code == error)
            return ERRORS[i].name;
    return "unrecognized error code";
}

/* The driver's texts, for the two speak of one list; errors of the runtime alone have two words of ours. */
API const char *cudaGetErrorString(cudaError_t error)
{
    const char *text = NULL;
    if (error == cudaErrorInsufficientDriver)
        return "CUDA driver version is insufficient for CUDA runtime version";
    if (error == cudaErrorInvalidDeviceFunction)
        return "invalid device function";
    rt_start();
    if (cu.cuGetErrorString && !cu.cuGetErrorString(error, &text) && text)
        return text;
    return cudaGetErrorName(error);
}
