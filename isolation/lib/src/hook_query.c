/* SPDX-License-Identifier: Apache-2.0 */
/* What the program is told: the promise as the size of the card, and wrappers instead of the
 * driver's functions.
 */
#include "hook.h"
#include "pool.h"

/* The driver first, so that its errors stay true; then the smaller of promise and reality. */
GS_API CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total)
{
    CUresult rc = GS_REAL(cuMemGetInfo_v2)(free_bytes, total);
    int card;
    if (rc != CUDA_SUCCESS || !gs_managed() || (card = gs_card_here()) == GS_CARD_NONE)
        return rc;
    uint64_t limit, left = gs_left(card, &limit);
    if (free_bytes && *free_bytes > left)
        *free_bytes = left;
    if (total && *total > limit)
        *total = limit;
    return rc;
}

static unsigned narrow(uint64_t value) { return value > UINT32_MAX ? UINT32_MAX : (unsigned)value; }

GS_API CUresult cuMemGetInfo(unsigned *free_bytes, unsigned *total)
{
    CUresult rc = GS_REAL(cuMemGetInfo)(free_bytes, total);
    int card;
    if (rc != CUDA_SUCCESS || !gs_managed() || (card = gs_card_here()) == GS_CARD_NONE)
        return rc;
    uint64_t limit, left = gs_left(card, &limit);
    if (free_bytes && *free_bytes > left)
        *free_bytes = narrow(left);
    if (total && *total > limit)
        *total = narrow(limit);
    return rc;
}

GS_API CUresult cuDeviceTotalMem_v2(size_t *total, CUdevice device)
{
    CUresult rc = GS_REAL(cuDeviceTotalMem_v2)(total, device);
    int card;
    uint64_t limit;
    if (rc != CUDA_SUCCESS || !gs_managed() || (card = gs_card_of(device)) == GS_CARD_NONE)
        return rc;
    gs_left(card, &limit);
    *total = *total < limit ? *total : limit;
    return rc;
}

GS_API CUresult cuDeviceTotalMem(unsigned *total, CUdevice device)
{
    CUresult rc = GS_REAL(cuDeviceTotalMem)(total, device);
    int card;
    uint64_t limit;
    if (rc != CUDA_SUCCESS || !gs_managed() || (card = gs_card_of(device)) == GS_CARD_NONE)
        return rc;
    gs_left(card, &limit);
    *total = *total < limit ? *total : narrow(limit);
    return rc;
}

GS_API CUresult cuInit(unsigned flags)
{
    (void)gs_managed();
    return GS_REAL(cuInit)(flags);
}

static void count_unknown(const char *name)
{
    static uint32_t told;
    if (gs_managed() && __atomic_fetch_add(&told, 1, __ATOMIC_RELAXED) < 64)
        gs_breach(GS_BREACH_UNKNOWN_ENTRY, GS_CARD_NONE, 0, name);
}

/* The driver first; then its function, or our wrapper of it. A function that nobody classified, under whatever
 * name (a newer driver's form of a known one), is recorded, and refused where the promise is strict. */
static CUresult screen(CUresult rc, const char *name, void **function, int *status)
{
    if (rc != CUDA_SUCCESS || !function || !*function || !name)
        return rc;
    void *wrapper = gs_wrapper_for(*function);
    if (wrapper != *function) {
        *function = wrapper;
        return rc;
    }
    if (!gs_managed() || gs_symbol_known(name, *function))
        return rc;
    count_unknown(name);
    if (!(gs.flags & GS_LIMITS_STRICT))
        return rc;
    *function = NULL;
    if (status)
        *status = CU_PROC_NOT_FOUND;
    return CUDA_ERROR_NOT_FOUND;
}

GS_API CUresult cuGetProcAddress(const char *name, void **function, int version, uint64_t flags)
{
    return screen(GS_REAL(cuGetProcAddress)(name, function, version, flags), name, function, NULL);
}

GS_API CUresult cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags, int *status)
{
    return screen(GS_REAL(cuGetProcAddress_v2)(name, function, version, flags, status), name, function, status);
}

/* Private tables pass: the runtime cannot start without them. See docs/threats.md. */
GS_API CUresult cuGetExportTable(const void **table, const void *uuid)
{
    return GS_REAL(cuGetExportTable)(table, uuid);
}
