/* SPDX-License-Identifier: Apache-2.0 */
#include "fork.h"

#include <stddef.h>

#include "sys.h"

/* Both ends of the list, made by the linker. */
extern gs_forget *const __start_gs_forget_list[] __attribute__((visibility("hidden")));
extern gs_forget *const __stop_gs_forget_list[] __attribute__((visibility("hidden")));

enum { FORKED, ALIVE, FORGETTING };

static uint32_t *state;

/* From now on a fork is noticed: `alive` lies in memory that the kernel zeroes in a child. */
void gs_fork_watch(uint32_t *alive)
{
    *alive = ALIVE;
    state = alive;
}

/* In a forked child, once: forget. Does nothing in any other process. */
void gs_after_fork(void)
{
    uint32_t forked = FORKED;
    if (!state || __atomic_load_n(state, __ATOMIC_ACQUIRE) == ALIVE)
        return;
    if (__atomic_compare_exchange_n(state, &forked, FORGETTING, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
        for (gs_forget *const *forget = __start_gs_forget_list; forget != __stop_gs_forget_list; forget++)
            (*forget)();
        __atomic_store_n(state, ALIVE, __ATOMIC_RELEASE);
    }
    while (__atomic_load_n(state, __ATOMIC_ACQUIRE) == FORGETTING)
        gs_yield();
}
