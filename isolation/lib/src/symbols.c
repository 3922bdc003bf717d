/* SPDX-License-Identifier: Apache-2.0 */
#include "symbols.h"

#include "driver.h"
#include "elf.h"

#define WRAP(name, kind) extern void name(void);
#define PASS(name, kind)
#include "symbols.def"
#undef WRAP
#undef PASS

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

static const struct {
    uint16_t id;
    void *function;
} wrappers[] = {
#define WRAP(name, kind) {GS_ID_##name, (void *)name},
#define PASS(name, kind)
#include "symbols.def"
#undef WRAP
#undef PASS
};

#define WRAPPERS (sizeof wrappers / sizeof *wrappers)

static const char *name_of(int id) { return (const char *)&names + name_at[id]; }

/* Our function of the same name, or NULL where the driver's own is handed out. */
static void *wrapper_of(int id)
{
    size_t low = 0, high = WRAPPERS;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (wrappers[middle].id < id)
            low = middle + 1;
        else
            high = middle;
    }
    return low < WRAPPERS && wrappers[low].id == id ? wrappers[low].function : NULL;
}

void *gs_reals[GS_ID_COUNT];

typedef void *(*dlsym_type)(void *, const char *);
__attribute__((visibility("hidden"))) dlsym_type gs_dlsym_real;
extern void *dlsym(void *handle, const char *name);

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
        const char *a = name_of(middle), *b = name;
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

/* Find the dlsym that calls are passed on to; called once, by the stub. Never NULL. */
void *gs_dlsym_resolve(void)
{
    void *found = gs_elf_next("dlsym");
    found = found ? found : (void *)gs_elf_absent;
    __atomic_store_n(&gs_dlsym_real, (dlsym_type)found, __ATOMIC_SEQ_CST);
    return found;
}

#ifdef GS_STRICT_HOOK
/* For the forwarders: where entry point `id` shall jump to. */
void *gs_forward_resolve(uint32_t id) { return gs_resolve((enum gs_id)id); }
#endif

/* Where the driver's (or NVML's) function is, from now on; it stays there. */
static void remember(int id, void *real)
{
    gs_elf_keep(real);
    __atomic_store_n(&gs_reals[id], real, __ATOMIC_RELEASE);
}

/* What is remembered of a function; NULL also where the driver is known to lack it. */
static void *remembered(int id)
{
    void *real = __atomic_load_n(&gs_reals[id], __ATOMIC_ACQUIRE);
    return real == (void *)no_such_call ? NULL : real;
}

/* The loaded driver's (or NVML's) own function, or NULL where it is not loaded or has no such name.
 * That a loaded driver lacks a name is remembered. */
void *gs_real_or_null(enum gs_id id)
{
    if (__atomic_load_n(&gs_reals[id], __ATOMIC_RELAXED))
        return remembered((int)id);
    const char *name = name_of((int)id);
    const char *library = name[0] == 'n' ? GS_NVML_FILE : GS_DRIVER_FILE;
    void *real = gs_elf_in(library, name), *any;
    if (!real && GS_STRICT && name[0] == 'c' && gs_driver_load() == 0)
        real = gs_elf_in(library, name);
    if (real && gs_elf_ours(real))
        return remembered((int)id); /* another thread has just redirected it, and remembered it before */
    if (real) {
        remember((int)id, real);
    } else if ((any = gs_elf_in(library, name[0] == 'n' ? "nvmlInit_v2" : "cuInit"))) {
        gs_elf_keep(any);
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
    return name_of((int)id)[0] == 'n' ? (void *)no_nvml : (void *)no_driver;
}

/* Look for the driver's own of all that we wrap. */
static void remember_all(void)
{
    for (size_t i = 0; i < WRAPPERS; i++)
        (void)gs_real_or_null((enum gs_id)wrappers[i].id);
}

/* What to hand out instead of the driver's function `real`: its wrapper, or `real` itself. Keyed by
 * the pointer, because the driver maps one name to several functions by version and stream mode. */
void *gs_wrapper_for(void *real)
{
    static uint32_t ready;
    if (!__atomic_load_n(&ready, __ATOMIC_ACQUIRE)) {
        remember_all();
        __atomic_store_n(&ready, 1, __ATOMIC_RELEASE);
    }
    for (size_t i = 0; i < WRAPPERS; i++)
        if (__atomic_load_n(&gs_reals[wrappers[i].id], __ATOMIC_RELAXED) == real)
            return wrappers[i].function;
    return real;
}

/* Is this the driver's own function of some name in the table? Mostly it has the name that was asked for, or that with
 * an ending (_v2, _ptsz); only where it does not, all names are looked through. */
int gs_symbol_known(const char *name, const void *function)
{
    int found = gs_symbol_find(name);
    for (int id = found; id >= 0 && id < GS_ID_COUNT && gs_starts(name_of(id), name); id++)
        if (gs_real_or_null((enum gs_id)id) == function)
            return 1;
    for (int id = 0; found >= 0 && id < GS_ID_COUNT; id++)
        if (name_of(id)[0] == 'c' && gs_real_or_null((enum gs_id)id) == function)
            return 1;
    return 0;
}

static const char *wrapped(uint32_t i) { return i < WRAPPERS ? name_of(wrappers[i].id) : NULL; }

static void *instead(uint32_t i, void *real)
{
    int elsewhere = remembered(wrappers[i].id) && !gs_elf_ours(real); /* ours: done before */
    return elsewhere ? wrappers[i].function : NULL;
}

/* Make the symbol tables of the driver and of NVML lead to our wrappers, as far as these are loaded. 0 or -errno.
 * What they held is remembered first: under the loader's lock nothing more may be asked of it. */
int gs_symbols_redirect(void)
{
    remember_all();
    int driver = gs_elf_redirect(GS_DRIVER_FILE, wrapped, instead);
    int nvml = gs_elf_redirect(GS_NVML_FILE, wrapped, instead);
    return driver < 0 ? driver : nvml;
}

/* For the stub: what dlsym(handle, name) shall answer, or NULL to ask the real one. */
void *gs_dlsym_lookup(void *handle, const char *name)
{
    if (gs_same(name, "dlsym"))
        return (void *)dlsym;
    if (gs_same(name, "dlvsym"))
        gs_dlvsym_look(name); /* and handed out: only the real one knows where RTLD_NEXT is */
    int id = gs_symbol_find(name);
    void *wrapper = id < 0 ? NULL : wrapper_of(id);
    if (!wrapper)
        return NULL;
    dlsym_type real_dlsym = gs_dlsym_real ? gs_dlsym_real : (dlsym_type)gs_dlsym_resolve();
    void *real = real_dlsym(handle, name);
    if (!real)
        return NULL; /* asked once more, so that dlerror() tells */
    if (real == wrapper || gs_elf_ours(real)) {
        if (gs_real_or_null((enum gs_id)id) || GS_STRICT)
            return wrapper;
        (void)real_dlsym(handle, "gpushare: no driver is loaded"); /* sets dlerror() */
        return GS_DLSYM_ABSENT; /* our own export must not look like a driver */
    }
    if (!remembered(id))
        remember(id, real);
    return wrapper;
}
