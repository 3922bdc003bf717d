/* SPDX-License-Identifier: Apache-2.0 */
/* Streams that are being captured: work on them is recorded instead of run, and a question asked of an event at the
 * wrong moment spoils the capture.
 */
#ifndef GS_CAPTURE_H
#define GS_CAPTURE_H

#include "cuda_subset.h"

void gs_capture_began(void);
void gs_capture_ended(void);
int gs_capture_any(void);
int gs_capture_untouchable(void);
int gs_capture_relax(int *mode);
void gs_capture_restore(int mode);
int gs_capturing(CUstream stream);

#endif
