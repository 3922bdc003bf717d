/* SPDX-License-Identifier: Apache-2.0 */
#include "capture.h"

#include "core.h"
#include "fork.h"
#include "symbols.h"
#include "table.h"

#define CAPTURE_RELAXED 2
#define UNCHANGED (-1)

static int32_t captures;

/* Is anything being captured anywhere in this process? Asking events would spoil it, but see gs_capture_relax(). */
int gs_capture_any(void) { return __atomic_load_n(&captures, __ATOMIC_ACQUIRE) != 0; }

/* Counts as such also where this call is the first one, so that a fork is noticed. */
void gs_capture_began(void)
{
    (void)gs_managed();
    __atomic_fetch_add(&captures, 1, __ATOMIC_ACQ_REL);
}

void gs_capture_ended(void)
{
    if (__atomic_fetch_sub(&captures, 1, __ATOMIC_ACQ_REL) <= 0)
        __atomic_fetch_add(&captures, 1, __ATOMIC_ACQ_REL);
}

/* A driver without capture modes: its captures must be left alone. */
int gs_capture_untouchable(void)
{
    return GS_UNLIKELY(gs_capture_any()) && !GS_HAS(cuThreadExchangeStreamCaptureMode);
}

/* May events be asked now? They may while something is captured, by a thread whose mode is relaxed: that spoils no
 * capture. A capture may stay open for good. 0: the driver has no such modes, do not ask; else pair with
 * gs_capture_restore(). */
int gs_capture_relax(int *mode)
{
    *mode = UNCHANGED;
    if (GS_LIKELY(!gs_capture_any()))
        return 1;
    int wanted = CAPTURE_RELAXED;
    if (gs_capture_untouchable() || GS_REAL(cuThreadExchangeStreamCaptureMode)(&wanted) != CUDA_SUCCESS)
        return 0;
    *mode = wanted; /* that of before */
    return 1;
}

void gs_capture_restore(int mode)
{
    if (GS_UNLIKELY(mode != UNCHANGED))
        (void)GS_REAL(cuThreadExchangeStreamCaptureMode)(&mode);
}

/* Is work on this stream recorded instead of run? */
int gs_capturing(CUstream stream)
{
    struct gs_entry entry;
    int status = 0;
    if (GS_LIKELY(!gs_capture_any()))
        return 0;
    if (gs_table_get((uint64_t)stream, GS_KIND_CIG, &entry) == 0)
        return 1;
    return GS_REAL(cuStreamIsCapturing)(stream, &status) == CUDA_SUCCESS && status != 0;
}

/* A forked child captures nothing of its parent's. */
static void forget_all(void) { captures = 0; }

GS_FORGET_AFTER_FORK(forget_all);
