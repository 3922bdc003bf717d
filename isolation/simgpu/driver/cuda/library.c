/* SPDX-License-Identifier: Apache-2.0 */
/* Libraries: images that are loaded into a device's context when a kernel is first used there,
 * and the linker, which hands its last input through.
 * Return convention: CUresult. */
#define _GNU_SOURCE
#include "context.h"
#include "device.h"
#include "module.h"
#include "sim.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A library is a module without a context; its kernels are functions without one. */
static struct sim_module *library_check(void *handle)
{
    struct sim_module *library = handle;
    return library && library->tag == SIM_MODULE && !library->context ? library : NULL;
}

/* The library's module in the current context, loaded now if it was not. */
static CUresult module_in(struct sim_module *library, struct sim_context *context, struct sim_module **module)
{
    struct sim_module **slot = &library->loaded[context->device];
    if (!*slot) {
        TRY(sim_module_load(context, library->image, slot));
        (*slot)->library = library;
    }
    *module = *slot;
    return CUDA_SUCCESS;
}

API CUresult cuModuleGetLoadingMode(int *mode);

API CUresult cuLibraryLoadData(struct sim_module **made, const void *image, int *jit, void **jit_values,
                               unsigned jit_count, int *options, void **values, unsigned count)
{
    ENTER();
    (void)jit, (void)jit_values, (void)jit_count, (void)options, (void)values, (void)count;
    if (!made || !image)
        return CUDA_ERROR_INVALID_VALUE;
    LOCKED();
    struct sim_module *library = sim_new(sizeof *library);
    *library = (struct sim_module){.tag = SIM_MODULE};
    CUresult result = sim_image_parse(image, sim_arch(sim_device[0]), library);
    if (result) {
        library->tag = SIM_DEAD;
        return result;
    }
    const char *text = image;
    int is_text = !strncmp(text, "simgpu", 6) || strstr(text, ".version");
    library->image = is_text ? strdup(text) : (void *)image; /* binary images stay the caller's */
    struct sim_context *context;
    struct sim_module *module;
    int mode = 0;
    TRY(cuModuleGetLoadingMode(&mode));
    if (mode == 1 && !sim_current(&context)) /* eager: into the current context at once */
        result = module_in(library, context, &module);
    if (result)
        library->tag = SIM_DEAD;
    else
        *made = library;
    return result;
}

API CUresult cuLibraryLoadFromFile(struct sim_module **made, const char *path, int *jit, void **jit_values,
                                   unsigned jit_count, int *options, void **values, unsigned count)
{
    FILE *file = path ? fopen(path, "rbe") : NULL;
    if (!file)
        return path ? CUDA_ERROR_FILE_NOT_FOUND : CUDA_ERROR_INVALID_VALUE;
    char *text = sim_new(64 << 20);
    size_t got = fread(text, 1, (64 << 20) - 16, file);
    fclose(file);
    return got ? cuLibraryLoadData(made, text, jit, jit_values, jit_count, options, values, count)
               : CUDA_ERROR_INVALID_IMAGE;
}

API CUresult cuLibraryUnload(void *handle)
{
    ENTER();
    LOCKED();
    struct sim_module *library = library_check(handle);
    if (!library)
        return CUDA_ERROR_INVALID_HANDLE;
    for (int i = 0; i < sim_devices; i++)
        if (library->loaded[i])
            sim_module_end(library->loaded[i]);
    for (size_t i = 0; i < library->functions; i++)
        library->function[i]->tag = SIM_DEAD;
    library->tag = SIM_DEAD;
    return CUDA_SUCCESS;
}

API CUresult cuLibraryGetKernel(struct sim_function **kernel, void *handle, const char *name)
{
    ENTER();
    LOCKED();
    struct sim_module *library = library_check(handle);
    if (!library)
        return CUDA_ERROR_INVALID_HANDLE;
    if (!kernel || !name)
        return CUDA_ERROR_INVALID_VALUE;
    *kernel = sim_function_find(library, name);
    return *kernel ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

API CUresult cuLibraryGetKernelCount(unsigned *count, void *handle)
{
    ENTER();
    struct sim_module *library = library_check(handle);
    if (!library || !count)
        return library ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_HANDLE;
    *count = (unsigned)library->functions;
    return CUDA_SUCCESS;
}

API CUresult cuLibraryEnumerateKernels(struct sim_function **kernels, unsigned room, void *handle)
{
    ENTER();
    struct sim_module *library = library_check(handle);
    if (!library || !kernels)
        return library ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_HANDLE;
    for (unsigned i = 0; i < room && i < library->functions; i++)
        kernels[i] = library->function[i];
    return CUDA_SUCCESS;
}

API CUresult cuLibraryGetModule(struct sim_module **module, void *handle)
{
    ENTER();
    struct sim_context *context;
    TRY(sim_current(&context));
    LOCKED();
    struct sim_module *library = library_check(handle);
    if (!library || !module)
        return library ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_HANDLE;
    return module_in(library, context, module);
}

API CUresult cuModuleGetGlobal_v2(CUdeviceptr *pointer, size_t *bytes, void *module, const char *name);

API CUresult cuLibraryGetGlobal(CUdeviceptr *pointer, size_t *bytes, void *library, const char *name)
{
    struct sim_module *module;
    TRY(cuLibraryGetModule(&module, library));
    return cuModuleGetGlobal_v2(pointer, bytes, module, name);
}

API CUresult cuKernelGetFunction(struct sim_function **function, void *handle)
{
    ENTER();
    struct sim_context *context;
    struct sim_module *module;
    TRY(sim_current(&context));
    LOCKED();
    struct sim_function *kernel = sim_function_check(handle);
    if (!kernel || !function)
        return CUDA_ERROR_INVALID_HANDLE;
    if (kernel->module->context) {
        *function = kernel;
        return CUDA_SUCCESS;
    }
    TRY(module_in(kernel->module, context, &module));
    *function = sim_function_find(module, kernel->name);
    return *function ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

API CUresult cuKernelGetLibrary(struct sim_module **library, void *handle)
{
    ENTER();
    struct sim_function *kernel = sim_function_check(handle);
    if (!kernel || !library)
        return CUDA_ERROR_INVALID_HANDLE;
    *library = kernel->module->library ? kernel->module->library : kernel->module;
    return CUDA_SUCCESS;
}

struct link {
    char *image;
    size_t bytes;
};

API CUresult cuLinkCreate_v2(unsigned count, int *options, void **values, struct link **made)
{
    ENTER();
    (void)count, (void)options, (void)values;
    if (!made)
        return CUDA_ERROR_INVALID_VALUE;
    *made = sim_new(sizeof **made);
    return CUDA_SUCCESS;
}

API CUresult cuLinkAddData_v2(struct link *link, int type, const void *data, size_t bytes, const char *name,
                              unsigned count, int *options, void **values)
{
    ENTER();
    (void)type, (void)name, (void)count, (void)options, (void)values;
    if (!link || !data || !bytes)
        return CUDA_ERROR_INVALID_VALUE;
    free(link->image);
    link->image = sim_new(bytes + 16);
    memcpy(link->image, data, bytes);
    link->bytes = bytes;
    return CUDA_SUCCESS;
}

API CUresult cuLinkComplete(struct link *link, void **image, size_t *bytes)
{
    ENTER();
    if (!link || !link->image || !image)
        return CUDA_ERROR_INVALID_VALUE;
    *image = link->image;
    if (bytes)
        *bytes = link->bytes;
    return CUDA_SUCCESS;
}

API CUresult cuLinkDestroy(struct link *link)
{
    ENTER();
    if (!link)
        return CUDA_ERROR_INVALID_HANDLE;
    free(link->image);
    free(link);
    return CUDA_SUCCESS;
}
