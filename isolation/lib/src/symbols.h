/* SPDX-License-Identifier: Apache-2.0 */
/* The table of entry points: their names, what we do about each, and where the driver's own is. */
#ifndef GS_SYMBOLS_H
#define GS_SYMBOLS_H

#include <stdint.h>

#include "sys.h"

#define GS_API __attribute__((visibility("default")))

/* The strict variant takes the driver's SONAME, so it must load the driver itself. */
#ifdef GS_STRICT_HOOK
#define GS_STRICT 1
#else
#define GS_STRICT 0
#endif

#define GS_DRIVER_FILE "libcuda.so" /* how the names of their files begin */
#define GS_NVML_FILE "libnvidia-ml.so"

enum gs_id {
#define WRAP(name, kind) GS_ID_##name,
#define PASS(name, kind) GS_ID_##name,
#include "symbols.def"
#undef WRAP
#undef PASS
    GS_ID_COUNT
};

extern void *gs_reals[GS_ID_COUNT];

const char *gs_symbol_name(int id);
int gs_symbol_find(const char *name);
int gs_symbol_known(const char *name, const void *function);
void *gs_resolve(enum gs_id id);
void gs_real_set(int id, void *real);
void *gs_real_get(int id);
void *gs_forward_resolve(uint32_t id);

/* The driver's own function; one that says "no driver" where there is none. */
static inline void *gs_real(enum gs_id id)
{
    void *real = __atomic_load_n(&gs_reals[id], __ATOMIC_RELAXED);
    return GS_LIKELY(real != NULL) ? real : gs_resolve(id);
}

#define GS_REAL(name) ((__typeof__(&name))gs_real(GS_ID_##name))
#define GS_HAS(name) (gs_real_or_null(GS_ID_##name) != NULL)
void *gs_real_or_null(enum gs_id id);

#endif
