/* SPDX-License-Identifier: Apache-2.0 */
/* Finding the simulated driver, devices and their primary contexts, errors of each thread. */
#define _GNU_SOURCE
#include "runtime.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

struct rt_driver cu;
const struct sim_unseen *rt_unseen;

static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static cudaError_t started = cudaErrorInsufficientDriver;
static void *primary[RT_DEVICES];
static __thread cudaError_t last_error;
static __thread int chosen; /* device of a thread that has no context yet */

static const struct {
    const char *name;
    int version;
    size_t offset;
} WANTED[] = {
#define D(name, version, ...) {#name, version, offsetof(struct rt_driver, name)},
#include "driver.def"
};

void rt_lock(void)
{
    pthread_mutex_lock(&lock);
}

void rt_unlock(void)
{
    pthread_mutex_unlock(&lock);
}

/* What a driver that is too old for a function answers. */
static int not_supported(void)
{
    return cudaErrorNotSupported;
}

/* The driver by its name, as programs load it; else the one in our own directory. */
static void *load_driver(void)
{
    void *handle = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    Dl_info self;
    if (handle || !dladdr((const void *)load_driver, &self))
        return handle;
    char path[4096];
    const char *slash = strrchr(self.dli_fname, '/');
    if (!slash || snprintf(path, sizeof path, "%.*s/libcuda.so.1", (int)(slash - self.dli_fname), self.dli_fname) >=
                      (int)sizeof path)
        return NULL;
    return dlopen(path, RTLD_NOW | RTLD_LOCAL);
}

/* Every other driver than the simulated one is refused: it has a runtime of its own. */
static void start(void)
{
    void *driver = load_driver();
    int (*find)(const char *, void **, int, uint64_t, int *) = NULL;
    void *symbol = driver ? dlsym(driver, "cuGetProcAddress_v2") : NULL;
    memcpy(&find, &symbol, sizeof find);
    if (!find)
        return;
    for (size_t i = 0; i < sizeof WANTED / sizeof *WANTED; i++) {
        void *function = NULL;
        find(WANTED[i].name, &function, WANTED[i].version, 0, NULL);
        int (*missing)(void) = not_supported;
        if (!function)
            memcpy(&function, &missing, sizeof function);
        memcpy((char *)&cu + WANTED[i].offset, &function, sizeof function);
    }
    const void *table = NULL;
    if (!cu.cuGetExportTable(&table, SIM_UNSEEN_ID)) {
        rt_unseen = table;
        started = cu.cuInit(0);
    }
}

/* Load and start the driver, once per process. */
cudaError_t rt_start(void)
{
    pthread_once(&once, start);
    return started;
}

cudaError_t rt_result(cudaError_t result)
{
    if (result)
        last_error = result;
    return result;
}

/* The primary context of a device, made on a path that no hook sees. */
cudaError_t rt_primary(int device, void **context)
{
    int count = 0;
    cudaError_t result = cu.cuDeviceGetCount(&count);
    if (result)
        return result;
    if (device < 0 || device >= count || device >= RT_DEVICES)
        return cudaErrorInvalidDevice;
    rt_lock();
    if (!primary[device])
        result = rt_unseen->primary_retain(&primary[device], device);
    *context = primary[device];
    rt_unlock();
    return result;
}

static cudaError_t use(int device)
{
    void *context;
    cudaError_t result = rt_primary(device, &context);
    return result ? result : cu.cuCtxSetCurrent(context);
}

/* Have a context: the one that the program made current, else the primary one of the thread's device. */
cudaError_t rt_enter(void)
{
    cudaError_t result = rt_start();
    void *context = NULL;
    if (!result)
        result = cu.cuCtxGetCurrent(&context);
    return result || context ? result : use(chosen);
}

/* The calling thread's device. */
int rt_device(void)
{
    int device;
    return !started && !cu.cuCtxGetDevice(&device) ? device : chosen;
}

API cudaError_t cudaGetLastError(void)
{
    cudaError_t error = last_error;
    last_error = cudaSuccess;
    return error;
}

API cudaError_t cudaPeekAtLastError(void)
{
    return last_error;
}

API cudaError_t cudaGetDeviceCount(int *count)
{
    cudaError_t result = rt_start();
    if (!result)
        result = count ? cu.cuDeviceGetCount(count) : cudaErrorInvalidValue;
    else if (count)
        *count = 0;
    return rt_result(result);
}

API cudaError_t cudaGetDevice(int *device)
{
    cudaError_t result = rt_start();
    if (!result && !device)
        result = cudaErrorInvalidValue;
    if (!result)
        *device = rt_device();
    return rt_result(result);
}

/* Since CUDA 12 this makes the device's context at once. */
API cudaError_t cudaSetDevice(int device)
{
    cudaError_t result = rt_start();
    if (!result)
        result = use(device);
    if (!result)
        chosen = device;
    return rt_result(result);
}

API cudaError_t cudaInitDevice(int device, unsigned flags, unsigned set_flags)
{
    void *context;
    (void)flags, (void)set_flags;
    START(rt_primary(device, &context));
}

API cudaError_t cudaDeviceReset(void)
{
    cudaError_t result = rt_start();
    if (result)
        return rt_result(result);
    int device = rt_device();
    rt_lock();
    if (primary[device])
        result = cu.cuDevicePrimaryCtxReset(device);
    primary[device] = NULL;
    rt_unlock();
    rt_forget_modules(device);
    cu.cuCtxSetCurrent(NULL);
    return rt_result(result);
}

API cudaError_t cudaDeviceSynchronize(void)
{
    ENTER(cu.cuCtxSynchronize());
}

API cudaError_t cudaDriverGetVersion(int *version)
{
    if (!version)
        return rt_result(cudaErrorInvalidValue);
    *version = 0;
    cudaError_t result = rt_start();
    return result == cudaErrorInsufficientDriver ? cudaSuccess : cu.cuDriverGetVersion(version);
}

API cudaError_t cudaRuntimeGetVersion(int *version)
{
    if (!version)
        return rt_result(cudaErrorInvalidValue);
    *version = RT_VERSION;
    return cudaSuccess;
}

API cudaError_t cudaGetDriverEntryPointByVersion(const char *name, void **function, unsigned version,
                                                 unsigned long long flags, int *status)
{
    cudaError_t result = rt_start();
    if (!result)
        result = cu.cuGetProcAddress(name, function, (int)version, flags, status);
    return rt_result(result == cudaErrorSymbolNotFound ? cudaSuccess : result);
}

#if RUNTIME == 12
API cudaError_t cudaGetDriverEntryPoint(const char *name, void **function, unsigned long long flags, int *status)
{
    return cudaGetDriverEntryPointByVersion(name, function, RT_VERSION, flags, status);
}
#endif

API cudaError_t cudaProfilerStart(void)
{
    ENTER(cu.cuProfilerStart());
}

API cudaError_t cudaProfilerStop(void)
{
    ENTER(cu.cuProfilerStop());
}
