/* SPDX-License-Identifier: Apache-2.0 */
/* What all files of the simulated libcuda share: its lock, its memory, the card's hardware file. Each object (device,
 * context, stream, event, memory, pool, module, graph) has a header of its own.
 *
 * One lock (sim_lock) guards all of it; it is taken before any card's lock and never held while
 * waiting for the device. Handles are pointers to structs with a tag; they are never unmapped,
 * so a stale one is told apart, not followed. Return convention: CUresult.
 */
#ifndef SIMGPU_SIM_H
#define SIMGPU_SIM_H

#include "cu.h"
#include "../hw/hw.h"

enum sim_tag {
    SIM_DEAD,
    SIM_CONTEXT = 0x51430001,
    SIM_STREAM,
    SIM_EVENT,
    SIM_MODULE,
    SIM_FUNCTION,
    SIM_POOL,
    SIM_PHYSICAL,
    SIM_ARRAY,
    SIM_GRAPH,
    SIM_NODE,
    SIM_EXEC,
    SIM_GREEN,
    SIM_USER_OBJECT,
};

extern struct hw sim_hw;

static inline const struct hw_params *sim_params(void)
{
    return &sim_hw.file->params;
}

API CUresult cuDriverGetVersion(int *version);
void sim_lock(void);
void sim_unlock(void);
CUresult sim_enter(void);
CUresult sim_join_mps(void);
void *sim_new(size_t bytes);
char *sim_text(const char *text, size_t length);
uint64_t sim_round(uint64_t bytes, uint64_t granule);

#define ENTER()                          \
    do {                                 \
        CUresult entered_ = sim_enter(); \
        if (entered_)                    \
            return entered_;             \
    } while (0)

#define TRY(expression)                 \
    do {                                \
        CUresult tried_ = (expression); \
        if (tried_)                     \
            return tried_;              \
    } while (0)

static inline void sim_left(int *scope)
{
    (void)scope;
    sim_unlock();
}

static inline int sim_locked(void)
{
    sim_lock();
    return 1;
}

/* Hold the process's lock until the end of the enclosing block. */
#define LOCKED() int locked_ __attribute__((cleanup(sim_left), unused)) = sim_locked()

#endif
