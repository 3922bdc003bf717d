/* SPDX-License-Identifier: Apache-2.0 */
/* Locks between the threads of one process. A fork may copy one that is taken, and whoever held it
 * does not exist in the child: a waiter therefore asks now and then whether it is such a child.
 */
#ifndef GS_SPIN_H
#define GS_SPIN_H

#include "fork.h"
#include "sys.h"

/* Take the lock. In a forked child the parent's holders are forgotten with everything else of its. */
static inline void gs_spin_enter(uint32_t *lock)
{
    for (uint32_t tries = 1; GS_UNLIKELY(__atomic_exchange_n(lock, 1, __ATOMIC_ACQUIRE)); tries++)
        if (tries % 64 == 0) {
            gs_after_fork();
            gs_yield();
        }
}

static inline void gs_spin_leave(uint32_t *lock) { __atomic_store_n(lock, 0, __ATOMIC_RELEASE); }

#endif
