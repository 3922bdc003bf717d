/* SPDX-License-Identifier: Apache-2.0 */
/* Modules, libraries, their functions and variables. */
#ifndef SIMGPU_MODULE_H
#define SIMGPU_MODULE_H

#include "context.h"
#include "sim.h"

#define SIM_PARAMS 64    /* parameters of a kernel */

struct sim_symbol {
    char *name; /* of any length; never freed, as handles are */
    uint64_t bytes;
    CUdeviceptr address;
    int managed;
};

/* How long a kernel takes: a fixed figure, or one of its parameters. */
struct sim_figure {
    int given;     /* 0: not named in the image */
    int parameter; /* -1: `value` is fixed */
    uint64_t value, scale;
};

struct sim_function {
    uint32_t tag;
    struct sim_module *module;
    char *name;
    unsigned params;
    uint32_t size[SIM_PARAMS], offset[SIM_PARAMS];
    struct sim_figure ns, width;
    int per_wave; /* `ns` is for one wave of blocks */
    int fault;
    uint64_t local_bytes;
    int attribute[24];
};

struct sim_module {
    uint32_t tag;
    struct sim_context *context; /* NULL: a library */
    uint64_t bytes;              /* of the context's code */
    int opaque;                  /* any function name is accepted */
    struct sim_function **function;
    size_t functions;
    struct sim_symbol *symbol;
    size_t symbols;
    struct sim_module *loaded[SIM_MAX_DEVICES]; /* of a library: its module per device */
    void *image;                                /* of a library: what to load */
    struct sim_module *library, *next;
};

CUresult sim_image_parse(const void *image, uint32_t arch, struct sim_module *module);
CUresult sim_module_load(struct sim_context *context, const void *image, struct sim_module **loaded);
void sim_module_end(struct sim_module *module);
void sim_modules_end(struct sim_context *context);
struct sim_function *sim_function_check(void *handle);
struct sim_function *sim_function_find(struct sim_module *module, const char *name);

CUresult sim_cost(const struct sim_function *function, const struct sim_device *device, const unsigned grid[3],
                  const unsigned block[3], void **params, void **extra, struct hw_item *work);

#endif
