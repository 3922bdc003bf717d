/* SPDX-License-Identifier: Apache-2.0 */
/* What a forked child must not take over: it owns nothing of its parent's memory on the card, and has none of the
 * threads that held the parent's locks. Each file that keeps such state puts its function on a list; this one calls them.
 */
#ifndef GS_FORK_H
#define GS_FORK_H

#include <stdint.h>

/* A function that the linker puts on the list `list`. */
#define GS_ON_LIST(list, type, function)                                                                               \
    static type *const function##_on_##list __attribute__((section(#list), used)) = function

typedef void gs_forget(void);

/* At file scope: call `function` in a forked child before it uses anything of its parent's. */
#define GS_FORGET_AFTER_FORK(function) GS_ON_LIST(gs_forget_list, gs_forget, function)

void gs_fork_watch(uint32_t *alive);
void gs_after_fork(void);

#endif
