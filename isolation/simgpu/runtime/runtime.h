/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the runtime for simulated cards share. It is built twice, as libcudart.so.12 and
 * libcudart.so.13 (RUNTIME says which), over the public driver API; prototypes and numbers are typed
 * again from the CUDA Runtime API reference (12.8 and 13). cudaError_t and CUresult are one numbering
 * since CUDA 10.1, and so are streams, events, graphs, pools and their flags: they pass as they are.
 * Return convention: cudaError_t, also kept as the calling thread's last error. */
#ifndef SIMGPU_RUNTIME_H
#define SIMGPU_RUNTIME_H

#include "../driver/cuda/unseen.h"

#include <stddef.h>
#include <stdint.h>

#define API __attribute__((visibility("default")))
#define RT_DEVICES 64

#if RUNTIME == 12
#define RT_VERSION 12080
#else
#define RT_VERSION 13000
#endif

enum {
    cudaSuccess = 0,
    cudaErrorInvalidValue = 1,
    cudaErrorInvalidSymbol = 13,
    cudaErrorInsufficientDriver = 35,
    cudaErrorInvalidDeviceFunction = 98,
    cudaErrorInvalidDevice = 101,
    cudaErrorInvalidResourceHandle = 400,
    cudaErrorSymbolNotFound = 500,
    cudaErrorNotSupported = 801,
};

typedef int cudaError_t;
typedef uint64_t CUdeviceptr;

typedef struct {
    unsigned x, y, z;
} dim3;

typedef struct {
    char bytes[64];
} ipc_handle;

struct launch { /* cudaLaunchConfig_t */
    dim3 grid, block;
    size_t shared_bytes;
    void *stream, *attributes;
    unsigned attribute_count;
};

struct cu_launch { /* CUlaunchConfig */
    dim3 grid, block;
    unsigned shared_bytes;
    void *stream, *attributes;
    unsigned attribute_count;
};

struct cu_copy2 { /* CUDA_MEMCPY2D */
    struct {
        size_t x, y;
        int type;
        const void *host;
        CUdeviceptr device;
        void *array;
        size_t pitch;
    } from, to;
    size_t width, height;
};

/* The driver's functions, by the names of its own interface. */
struct rt_driver {
#define D(name, version, ...) int (*name)(__VA_ARGS__);
#include "driver.def"
};

extern struct rt_driver cu;

/* The simulated driver's private table: contexts are made and modules loaded past every hook, as NVIDIA's
 * runtime does it through tables of its own. */
extern const struct sim_unseen *rt_unseen;

/* start.c */
cudaError_t rt_start(void);
cudaError_t rt_enter(void);
cudaError_t rt_result(cudaError_t result);
cudaError_t rt_primary(int device, void **context);
int rt_device(void);
void rt_lock(void);
void rt_unlock(void);

/* module.c */
cudaError_t rt_function(const void *host, void **function);
cudaError_t rt_symbol(const void *host, CUdeviceptr *address, size_t *bytes);
void rt_add_kernel(void *kernel);
void rt_forget_modules(int device);

/* fatbin.c */
uint64_t rt_image_bytes(const void *wrapper, int capability);

/* A call that needs the driver, but no context. */
#define START(call)                                     \
    do {                                                \
        cudaError_t begun_ = rt_start();                \
        return rt_result(begun_ ? begun_ : (int)(call)); \
    } while (0)

/* A call that needs the current device's context. */
#define ENTER(call)                                       \
    do {                                                  \
        cudaError_t entered_ = rt_enter();                \
        return rt_result(entered_ ? entered_ : (int)(call)); \
    } while (0)

#endif
