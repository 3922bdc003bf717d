/* SPDX-License-Identifier: Apache-2.0 */
#include "symbols.h"

#include "driver.h"
#include "elf.h"

/* Names lie in one block and are found by offset: a table of pointers would be a thousand relocations
 * in every process that is started. */
static const struct names {
#define WRAP(name, kind) char name[sizeof #name];
#define PASS(name, kind) char name[sizeof #name];
#include "symbols.def"
#undef WRAP
#undef PASS
} names = {
#define WRAP(name, kind) #name,
#define PASS(name, kind) #name,
#include "symbols.def"
#undef WRAP
#undef PASS
};

static const uint16_t name_at[GS_ID_COUNT] = {
#define WRAP(name, kind) offsetof(struct names, name),
#define PASS(name, kind) offsetof(struct names, name),
#include "symbols.def"
#undef WRAP
#undef PASS
};

_Static_assert(sizeof names <= UINT16_MAX, "name offsets");

const char *gs_symbol_name(int id) { return (const char *)&names + name_at[id]; }

void *gs_reals[GS_ID_COUNT];

/* Answer of a driver that is not there: CUDA_ERROR_STUB_LIBRARY. */
static int no_driver(void) { return 34; }

/* Answer of an NVML that is not there: NVML_ERROR_LIBRARY_NOT_FOUND. */
static int no_nvml(void) { return 12; }

/* Stands for a name that the loaded driver does not have: CUDA_ERROR_NOT_FOUND. */
static int no_such_call(void) { return 500; }

/* Index of a name in the table, or -1. */
int gs_symbol_find(const char *name)
{
    int low = 0, high = GS_ID_COUNT;
    while (low < high) {
        int middle = (low + high) / 2;
        const char *a = gs_symbol_name(middle), *b = name;
        while (*a && *a == *b)
            a++, b++;
        if (*a == *b)
            return middle;
        if ((uint8_t)*a < (uint8_t)*b)
            low = middle + 1;
        else
            high = middle;
    }
    return -1;
}

#ifdef GS_STRICT_HOOK
/* For the forwarders: where entry point `id` shall jump to. */
void *gs_forward_resolve(uint32_t id) { return gs_resolve((enum gs_id)id); }
#endif

/* Where the driver's (or NVML's) function is, from now on; it stays there. */
void gs_real_set(int id, void *real)
{
    gs_elf_pin(real);
    __atomic_store_n(&gs_reals[id], real, __ATOMIC_RELEASE);
}

/* What is remembered of a function; NULL also where the driver is known to lack it. */
void *gs_real_get(int id)
{
    void *real = __atomic_load_n(&gs_reals[id], __ATOMIC_ACQUIRE);
    return real == (void *)no_such_call ? NULL : real;
}

/* The loaded driver's (or NVML's) own function, or NULL where it is not loaded or has no such name.
 * That a loaded driver lacks a name is remembered. */
void *gs_real_or_null(enum gs_id id)
{
    if (__atomic_load_n(&gs_reals[id], __ATOMIC_RELAXED))
        return gs_real_get((int)id);
    const char *name = gs_symbol_name((int)id);
    const char *library = name[0] == 'n' ? GS_NVML_FILE : GS_DRIVER_FILE;
    void *real = gs_elf_in(library, name), *any;
    if (!real && GS_STRICT && name[0] == 'c' && gs_driver_load() == 0)
        real = gs_elf_in(library, name);
    if (real && gs_elf_ours(real))
        return gs_real_get((int)id); /* another thread has just redirected it, and remembered it before */
    if (real) {
        gs_real_set((int)id, real);
    } else if ((any = gs_elf_in(library, name[0] == 'n' ? "nvmlInit_v2" : "cuInit"))) {
        gs_elf_pin(any);
        __atomic_store_n(&gs_reals[id], (void *)no_such_call, __ATOMIC_RELAXED);
    }
    return real;
}

/* The same, never NULL: a stand-in that says what is missing. The driver may still be loaded later. */
void *gs_resolve(enum gs_id id)
{
    void *real = gs_real_or_null(id);
    if (real)
        return real;
    if (gs_reals[id])
        return gs_reals[id];
    return gs_symbol_name((int)id)[0] == 'n' ? (void *)no_nvml : (void *)no_driver;
}

/* Is this the driver's own function of some name in the table? Mostly it has the name that was asked for, or that with
 * an ending (_v2, _ptsz); only where it does not, all names are looked through. */
int gs_symbol_known(const char *name, const void *function)
{
    int found = gs_symbol_find(name);
    for (int id = found; id >= 0 && id < GS_ID_COUNT && gs_starts(gs_symbol_name(id), name); id++)
        if (gs_real_or_null((enum gs_id)id) == function)
            return 1;
    for (int id = 0; found >= 0 && id < GS_ID_COUNT; id++)
        if (gs_symbol_name(id)[0] == 'c' && gs_real_or_null((enum gs_id)id) == function)
            return 1;
    return 0;
}
