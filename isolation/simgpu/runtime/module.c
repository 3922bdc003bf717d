/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels and variables of a linked program: the compiler registers them by their addresses on the host;
 * an image is loaded into a device when its first kernel or variable is used there (lazy loading), on a
 * path that no hook sees. The device gets a description of it: size, kernels, variables. */
#define _GNU_SOURCE
#include "runtime.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct image {
    const void *wrapper;
    void *module[RT_DEVICES];
    struct item *first;
};

struct item { /* a kernel or a variable */
    const void *host;
    const char *name; /* NULL: a kernel that the driver made, `host` is its handle */
    struct image *image;
    size_t bytes; /* of a variable */
    int variable;
    void **function; /* of a kernel, by device */
    struct item *next;
};

static struct item **table; /* by `host`; open addressing */
static size_t slots, used;

static size_t slot_of(const void *host)
{
    size_t at = ((uintptr_t)host >> 4) * 0x9E3779B97F4A7C15ull >> 20;
    for (at &= slots - 1; table[at] && table[at]->host != host; at = (at + 1) & (slots - 1))
        ;
    return at;
}

static struct item *find(const void *host, int variable)
{
    struct item *item = slots ? table[slot_of(host)] : NULL;
    return item && item->variable == variable ? item : NULL;
}

static void *need(void *memory)
{
    if (!memory)
        abort();
    return memory;
}

static void insert(struct item *item)
{
    if (used * 2 >= slots) {
        struct item **old = table;
        size_t count = slots;
        slots = slots ? slots * 2 : 1024;
        table = need(calloc(slots, sizeof *table));
        for (size_t i = 0; i < count; i++)
            if (old[i])
                table[slot_of(old[i]->host)] = old[i];
        free(old);
    }
    struct item **slot = &table[slot_of(item->host)];
    used += !*slot;
    *slot = item;
}

static void add(struct item as)
{
    struct item *item = need(malloc(sizeof *item));
    *item = as;
    rt_lock();
    if (as.image) {
        item->next = as.image->first;
        as.image->first = item;
    }
    insert(item);
    rt_unlock();
}

/* A kernel that cudaLibraryGetKernel gave: it is launched as it is. */
void rt_add_kernel(void *kernel)
{
    add((struct item){.host = kernel});
}

/* The text form in which the simulated driver takes images. */
static char *description(const struct image *image, uint64_t code_bytes)
{
    char *text = NULL;
    size_t length;
    FILE *out = need(open_memstream(&text, &length));
    fprintf(out, "simgpu 1\ncode %llu\n", (unsigned long long)code_bytes);
    for (const struct item *item = image->first; item; item = item->next)
        if (item->variable)
            fprintf(out, "global %s %zu\n", item->name, item->bytes);
        else
            fprintf(out, "kernel %s\n", item->name);
    fclose(out);
    return need(text);
}

/* pre: the lock is held */
static cudaError_t load(struct image *image, int device)
{
    int major = 0, minor = 0;
    if (image->module[device])
        return cudaSuccess;
    cudaError_t result = cu.cuDeviceGetAttribute(&major, 75, device);
    if (!result)
        result = cu.cuDeviceGetAttribute(&minor, 76, device);
    if (result)
        return result;
    char *text = description(image, rt_image_bytes(image->wrapper, major * 10 + minor));
    result = rt_unseen->module_load(&image->module[device], text);
    free(text);
    return result;
}

static cudaError_t function_on(struct item *item, int device, void **function)
{
    if (!item->name) {
        *function = (void *)(uintptr_t)item->host;
        return cudaSuccess;
    }
    if (!item->function)
        item->function = need(calloc(RT_DEVICES, sizeof *item->function));
    cudaError_t result = cudaSuccess;
    if (!item->function[device]) {
        result = load(item->image, device);
        if (!result)
            result = cu.cuModuleGetFunction(&item->function[device], item->image->module[device], item->name);
    }
    *function = item->function[device];
    return result;
}

/* The driver's function for a kernel's address on the host.  pre: rt_enter */
cudaError_t rt_function(const void *host, void **function)
{
    int device = rt_device();
    rt_lock();
    struct item *item = find(host, 0);
    cudaError_t result = item ? function_on(item, device, function) : cudaErrorInvalidDeviceFunction;
    rt_unlock();
    return result;
}

/* Where a variable is on the current device.  pre: rt_enter */
cudaError_t rt_symbol(const void *host, CUdeviceptr *address, size_t *bytes)
{
    int device = rt_device();
    rt_lock();
    struct item *item = find(host, 1);
    cudaError_t result = item ? load(item->image, device) : cudaErrorInvalidSymbol;
    if (!result)
        result = cu.cuModuleGetGlobal(address, bytes, item->image->module[device], item->name);
    rt_unlock();
    return result;
}

/* A device's context is gone, and with it all that was loaded there. */
void rt_forget_modules(int device)
{
    rt_lock();
    for (size_t i = 0; i < slots; i++)
        if (table[i] && table[i]->image) {
            table[i]->image->module[device] = NULL;
            if (table[i]->function)
                table[i]->function[device] = NULL;
        }
    rt_unlock();
}

/* What compiled programs call before main, each image in its turn. */
API void **__cudaRegisterFatBinary(void *wrapper)
{
    struct image *image = need(calloc(1, sizeof *image));
    image->wrapper = wrapper;
    return (void **)image;
}

API void __cudaRegisterFatBinaryEnd(void **handle)
{
    (void)handle;
}

/* Images stay: programs unregister while they exit, when the driver may be gone. */
API void __cudaUnregisterFatBinary(void **handle)
{
    (void)handle;
}

API char __cudaInitModule(void **handle)
{
    (void)handle;
    return 1;
}

API void __cudaRegisterFunction(void **handle, const char *host, char *device, const char *name, int threads,
                                void *thread, void *block, dim3 *block_size, dim3 *grid_size, int *warp)
{
    (void)device, (void)threads, (void)thread, (void)block, (void)block_size, (void)grid_size, (void)warp;
    add((struct item){.host = host, .name = name, .image = (struct image *)handle});
}

API void __cudaRegisterVar(void **handle, char *host, char *device, const char *name, int external, size_t bytes,
                           int constant, int global)
{
    (void)device, (void)external, (void)constant, (void)global;
    add((struct item){.host = host, .name = name, .image = (struct image *)handle, .bytes = bytes, .variable = 1});
}

API void __cudaRegisterManagedVar(void **handle, void **host, char *device, const char *name, int external,
                                  size_t bytes, int constant, int global)
{
    (void)device, (void)external, (void)constant, (void)global;
    add((struct item){.host = host, .name = name, .image = (struct image *)handle, .bytes = bytes, .variable = 1});
}
