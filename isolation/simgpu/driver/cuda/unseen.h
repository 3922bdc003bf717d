/* SPDX-License-Identifier: Apache-2.0 */
/* A private table of the simulated driver, for what no interposer sees: contexts, modules and memory that a runtime
 * takes through tables of its own. cuGetExportTable gives it for SIM_UNSEEN_ID; everything in it needs cuInit. */
#ifndef SIM_UNSEEN_H
#define SIM_UNSEEN_H

#include <stddef.h>
#include <stdint.h>

#define SIM_UNSEEN_ID "simgpu-unseen-01" /* 16 bytes */

struct sim_unseen {
    size_t bytes;                                            /* sizeof(struct sim_unseen) of the driver */
    int (*primary_retain)(void **context, int device);       /* cuDevicePrimaryCtxRetain */
    int (*primary_release)(int device);                      /* cuDevicePrimaryCtxRelease */
    int (*module_load)(void **module, const void *image);    /* cuModuleLoadData */
    int (*module_unload)(void *module);                      /* cuModuleUnload */
    int (*memory_alloc)(unsigned long long *at, size_t bytes); /* cuMemAlloc */
    int (*memory_free)(unsigned long long at);               /* cuMemFree */
};

/* The table of that name, or NULL (unseen.c). */
const void *sim_export_table(const void *id);

#endif
