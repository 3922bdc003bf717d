/* SPDX-License-Identifier: Apache-2.0 */
/* What the program sees: the promise as the size of the card. */
#include "hook.h"

/* The driver first, so that its errors stay true; then the smaller of promise and reality. */
GS_API CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total)
{
    CUresult rc = GS_REAL(cuMemGetInfo_v2)(free_bytes, total);
    int card;
    if (rc != CUDA_SUCCESS || !gs_managed() || (card = gs_card_here()) == GS_CARD_NONE)
        return rc;
    uint64_t limit, left = gs_available(card, &limit);
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
    uint64_t limit, left = gs_available(card, &limit);
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
    gs_available(card, &limit);
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
    gs_available(card, &limit);
    *total = *total < limit ? *total : narrow(limit);
    return rc;
}

GS_API CUresult cuInit(unsigned flags)
{
    (void)gs_managed();
    return GS_REAL(cuInit)(flags);
}

/* Private tables pass: the runtime cannot start without them. See docs/threats.md. */
GS_API CUresult cuGetExportTable(const void **table, const void *uuid)
{
    return GS_REAL(cuGetExportTable)(table, uuid);
}
