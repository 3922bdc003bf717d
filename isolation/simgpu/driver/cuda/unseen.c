/* SPDX-License-Identifier: Apache-2.0 */
/* The private table: the driver's own functions by address, past whoever stands in front of their names. They are
 * declared without their parameters, as in entry.c. */
#include "unseen.h"

#include <string.h>

#define ENTRY(symbol) extern void symbol(void);
ENTRY(cuDevicePrimaryCtxRetain)
ENTRY(cuDevicePrimaryCtxRelease_v2)
ENTRY(cuModuleLoadData)
ENTRY(cuModuleUnload)
ENTRY(cuMemAlloc_v2)
ENTRY(cuMemFree_v2)

const void *sim_export_table(const void *id)
{
    static const struct sim_unseen table = {
        .bytes = sizeof table,
        .primary_retain = (int (*)(void **, int))cuDevicePrimaryCtxRetain,
        .primary_release = (int (*)(int))cuDevicePrimaryCtxRelease_v2,
        .module_load = (int (*)(void **, const void *))cuModuleLoadData,
        .module_unload = (int (*)(void *))cuModuleUnload,
        .memory_alloc = (int (*)(unsigned long long *, size_t))cuMemAlloc_v2,
        .memory_free = (int (*)(unsigned long long))cuMemFree_v2,
    };
    return memcmp(id, SIM_UNSEEN_ID, 16) ? NULL : &table;
}
