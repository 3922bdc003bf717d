/* SPDX-License-Identifier: Apache-2.0 */
/* Every family of calls that takes memory of a card and gives it back, for programs that test the
 * ledger: as a program would make them, with what each one needs around it.
 */
#ifndef GS_FAMILIES_H
#define GS_FAMILIES_H

#include "../include/cuda_subset.h"

#define MIB (1ULL << 20)

#define FAMILIES(X)                                                                                                    \
    X(small) X(direct) X(pitch) X(managed) X(array) X(mipmap) X(mapped) X(exported) X(imported) X(module) X(library)   \
        X(heap) X(context) X(pool) X(ownpool) X(graph)

enum family {
    NOTHING,
#define X(name) FAMILY_##name,
    FAMILIES(X)
#undef X
        FAMILY_COUNT
};

struct held {
    enum family family;
    size_t bytes;
    CUdeviceptr at;
    CUmemHandle handle;
    void *object, *other; /* array, module, pool, context, graph */
};

/* How much of what may be taken, and from whom. */
struct wish {
    enum family family;
    size_t bytes;
    CUstream stream;
    struct cu_ipc_handle peer; /* of another process's memory */
};

const char *family_name(enum family family);
enum family family_named(const char *name);
CUresult family_take(struct held *held, const struct wish *wish);
CUresult family_give(struct held *held, CUstream stream);

extern CUresult cuDeviceGet(CUdevice *, int), cuCtxSetCurrent(CUcontext), cuStreamCreate(CUstream *, unsigned);

#endif
