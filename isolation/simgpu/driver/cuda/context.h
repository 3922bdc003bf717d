/* SPDX-License-Identifier: Apache-2.0 */
/* Contexts and their limits. */
#ifndef SIMGPU_CONTEXT_H
#define SIMGPU_CONTEXT_H

#include "device.h"
#include "sim.h"

#define SIM_STACK 32     /* contexts pushed by one thread */

struct sim_context {
    uint32_t tag;
    int device;
    int primary;
    unsigned flags;
    uint64_t id;
    uint64_t limit[CU_LIMITS];
    uint64_t base_bytes, limit_bytes; /* charged as context */
    uint64_t code_bytes;              /* of all its modules, charged in whole granules */
    uint64_t share;                   /* of a green context: millionths of the card; 0: all of it */
    struct sim_stream *legacy, *per_thread;
    struct sim_slab *slabs; /* with room */
    struct sim_context *next;
};

CUresult sim_current(struct sim_context **context);
CUresult sim_check_context(struct sim_context *context);
CUresult sim_make_context(int index, uint64_t bytes, struct sim_context **made);
void sim_end_context(struct sim_context *context);
CUresult sim_retain_primary(CUdevice index, struct sim_context **context);

#endif
