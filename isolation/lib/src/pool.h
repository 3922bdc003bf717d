/* Stream-ordered memory: what is charged is what a pool keeps reserved, not what is handed out. */
#ifndef GS_POOL_H
#define GS_POOL_H

#include <stdint.h>

uint64_t gs_pools_trim(int card);
void gs_pools_look(void);
void gs_pools_freed(uint64_t at);
int gs_graphs_over(void);
void gs_pools_forget(void);

/* Shared memory that we released and another process still maps (hook_vmm.c). */
uint64_t gs_lingering_release(int card);
void gs_lingering_forget(void);

#endif
