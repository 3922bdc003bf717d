/* SPDX-License-Identifier: Apache-2.0 */
/* Modules: loading an image costs memory for its code and its globals, which share granules within a context.
 * Return convention: CUresult. */
#define _GNU_SOURCE
#include "context.h"
#include "device.h"
#include "memory.h"
#include "module.h"
#include "sim.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static struct sim_module *modules;

struct sim_function *sim_function_check(void *handle)
{
    struct sim_function *function = handle;
    return function && function->tag == SIM_FUNCTION ? function : NULL;
}

static struct sim_module *module_check(void *handle)
{
    struct sim_module *module = handle;
    return module && module->tag == SIM_MODULE ? module : NULL;
}

/* Architecture as images name it: 90 is sm_90. */
uint32_t sim_arch(const struct sim_device *device)
{
    return (uint32_t)(device->card->model.cc_major * 10 + device->card->model.cc_minor);
}

/* Code of a context becomes `bytes`; what that takes of the card, in whole granules, is charged or given back. */
static CUresult set_code(struct sim_context *context, uint64_t bytes)
{
    uint64_t granule = sim_params()->granule_bytes;
    uint64_t before = sim_round(context->code_bytes, granule), after = sim_round(bytes, granule);
    if (after > before)
        TRY(sim_charge(sim_device_of(context), HW_MODULE, after - before));
    else
        sim_refund(sim_device_of(context), HW_MODULE, before - after);
    context->code_bytes = bytes;
    return CUDA_SUCCESS;
}

/* Charge code and globals together, and give each global an address. */
static CUresult place(struct sim_module *module)
{
    module->bytes = sim_round(module->bytes ? module->bytes : 1, 256) * sim_params()->module_permille / 1000;
    TRY(set_code(module->context, module->context->code_bytes + module->bytes));
    for (size_t i = 0; i < module->symbols; i++) {
        struct sim_range *range = sim_range_new(SIM_RANGE_SYMBOL, module->context, module->symbol[i].bytes);
        if (!range)
            return CUDA_ERROR_OUT_OF_MEMORY;
        module->symbol[i].address = range->base;
    }
    return CUDA_SUCCESS;
}

/* Load an image into a context.  pre: the process's lock is held. */
CUresult sim_module_load(struct sim_context *context, const void *image, struct sim_module **loaded)
{
    TRY(sim_device_error(sim_device_of(context)));
    struct sim_module *module = sim_new(sizeof *module);
    *module = (struct sim_module){.tag = SIM_MODULE, .context = context};
    CUresult result = sim_image_parse(image, sim_arch(sim_device_of(context)), module);
    if (!result)
        result = place(module);
    if (result) {
        module->tag = SIM_DEAD;
        return result;
    }
    module->next = modules;
    modules = module;
    *loaded = module;
    return CUDA_SUCCESS;
}

/* Unload: functions of the module are stale from now on. */
void sim_module_end(struct sim_module *module)
{
    for (size_t i = 0; i < module->functions; i++)
        module->function[i]->tag = SIM_DEAD;
    for (size_t i = 0; i < module->symbols; i++)
        if (sim_range_at(module->symbol[i].address))
            sim_range_end(sim_range_at(module->symbol[i].address));
    (void)set_code(module->context, module->context->code_bytes - module->bytes);
    for (struct sim_module **at = &modules; *at; at = &(*at)->next)
        if (*at == module) {
            *at = module->next;
            break;
        }
    if (module->library)
        module->library->loaded[module->context->device] = NULL;
    module->tag = SIM_DEAD;
}

/* Unload everything of a context that ends. */
void sim_modules_end(struct sim_context *context)
{
    for (struct sim_module *module = modules, *next; module; module = next) {
        next = module->next;
        if (module->context == context)
            sim_module_end(module);
    }
}

API CUresult cuModuleLoadData(struct sim_module **module, const void *image)
{
    ENTER();
    struct sim_context *context;
    TRY(sim_current(&context));
    if (!module || !image)
        return CUDA_ERROR_INVALID_VALUE;
    LOCKED();
    return sim_module_load(context, image, module);
}

API CUresult cuModuleLoadDataEx(struct sim_module **module, const void *image, unsigned count, int *options,
                                void **values)
{
    (void)count, (void)options, (void)values;
    return cuModuleLoadData(module, image);
}

API CUresult cuModuleLoadFatBinary(struct sim_module **module, const void *image)
{
    return cuModuleLoadData(module, image);
}

/* A file's contents with a zero behind them, or NULL. */
static char *read_file(const char *path)
{
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return NULL;
    char *text = fstat(fd, &st) ? NULL : calloc(1, (size_t)st.st_size + 16);
    if (text && read(fd, text, (size_t)st.st_size) != st.st_size) {
        free(text);
        text = NULL;
    }
    close(fd);
    return text;
}

API CUresult cuModuleLoad(struct sim_module **module, const char *path)
{
    ENTER();
    char *text = path ? read_file(path) : NULL;
    if (!text)
        return path ? CUDA_ERROR_FILE_NOT_FOUND : CUDA_ERROR_INVALID_VALUE;
    CUresult result = cuModuleLoadData(module, text);
    free(text);
    return result;
}

API CUresult cuModuleUnload(void *handle)
{
    ENTER();
    LOCKED();
    struct sim_module *module = module_check(handle);
    if (!module || !module->context)
        return CUDA_ERROR_INVALID_HANDLE;
    sim_module_end(module);
    return CUDA_SUCCESS;
}

API CUresult cuModuleGetLoadingMode(int *mode)
{
    if (!mode)
        return CUDA_ERROR_INVALID_VALUE;
    const char *set = getenv("CUDA_MODULE_LOADING");
    *mode = set && !strcmp(set, "EAGER") ? 1 : 2;
    return CUDA_SUCCESS;
}

API CUresult cuModuleGetFunction(struct sim_function **function, void *handle, const char *name)
{
    ENTER();
    LOCKED();
    struct sim_module *module = module_check(handle);
    if (!module)
        return CUDA_ERROR_INVALID_HANDLE;
    if (!function || !name)
        return CUDA_ERROR_INVALID_VALUE;
    *function = sim_function_find(module, name);
    return *function ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

API CUresult cuModuleGetFunctionCount(unsigned *count, void *handle)
{
    ENTER();
    struct sim_module *module = module_check(handle);
    if (!module || !count)
        return module ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_HANDLE;
    *count = (unsigned)module->functions;
    return CUDA_SUCCESS;
}

API CUresult cuModuleEnumerateFunctions(struct sim_function **functions, unsigned room, void *handle)
{
    ENTER();
    struct sim_module *module = module_check(handle);
    if (!module || !functions)
        return module ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_HANDLE;
    for (unsigned i = 0; i < room && i < module->functions; i++)
        functions[i] = module->function[i];
    return CUDA_SUCCESS;
}

API CUresult cuModuleGetGlobal_v2(CUdeviceptr *pointer, size_t *bytes, void *handle, const char *name)
{
    ENTER();
    LOCKED();
    struct sim_module *module = module_check(handle);
    if (!module)
        return CUDA_ERROR_INVALID_HANDLE;
    for (size_t i = 0; name && i < module->symbols; i++)
        if (!strcmp(module->symbol[i].name, name)) {
            if (pointer)
                *pointer = module->symbol[i].address;
            if (bytes)
                *bytes = module->symbol[i].bytes;
            return CUDA_SUCCESS;
        }
    return name ? CUDA_ERROR_NOT_FOUND : CUDA_ERROR_INVALID_VALUE;
}

API CUresult cuModuleGetGlobal(CUdeviceptr *pointer, size_t *bytes, void *handle, const char *name)
{
    return cuModuleGetGlobal_v2(pointer, bytes, handle, name);
}
