/* SPDX-License-Identifier: Apache-2.0 */
/* Every way by which a program gets at an entry point, on top of all wrappers: dlsym and cuGetProcAddress hand out
 * ours. And the ways round our place in front of all libraries: RTLD_DEEPBIND, under which a library's own libraries
 * come before us, the driver and the C library with its dlsym among them, and the dlsym behind ours, taken through
 * dlvsym. Before either happens the driver's own symbol table is made to lead to us: that holds for any look-up in it.
 */
#include <dlfcn.h>

#include "driver.h"
#include "elf.h"
#include "hook.h"
#include "nvml_subset.h"

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

static const char *wrapped(uint32_t i) { return i < WRAPPERS ? gs_symbol_name(wrappers[i].id) : NULL; }

static void *instead(uint32_t i, void *real)
{
    int elsewhere = gs_real_get(wrappers[i].id) && !gs_elf_ours(real); /* ours: done before */
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

static const char *const names[] = {"dlopen", "dlmopen", "dlvsym"}; /* loader.S counts on the order */

/* What the stubs jump on to; NULL: not looked for yet. */
void *gs_loader_reals[sizeof names / sizeof *names];

/* Find what a stub jumps on to. Never NULL. */
void *gs_loader_resolve(uint32_t which)
{
    void *found = gs_elf_next(names[which]);
    if (found)
        __atomic_store_n(&gs_loader_reals[which], found, __ATOMIC_RELEASE);
    return found ? found : (void *)gs_elf_absent; /* not remembered: libdl may come */
}

/* For the stubs of dlopen and dlmopen, where RTLD_DEEPBIND is asked for. The driver is loaded if it was not: the
 * library's own dlopen would be that of the C library, of which we hear nothing. */
void gs_loader_deep(void)
{
    void *(*open)(const char *, int) = (void *(*)(const char *, int))gs_elf_libc("dlopen");
    if (!gs_managed() || !open)
        return;
    if (!gs_elf_in(GS_DRIVER_FILE, "cuInit"))
        (void)gs_driver_load();
    if (!gs_elf_in(GS_NVML_FILE, "nvmlInit_v2"))
        (void)open(GS_NVML_FILE ".1", RTLD_LAZY);
    int rc = gs_symbols_redirect();
    if (rc < 0)
        gs_breach(GS_BREACH_UNKNOWN_ENTRY, GS_CARD_NONE, (uint64_t)-rc, "RTLD_DEEPBIND");
}

/* For the stub of dlvsym, and for dlsym where dlvsym itself is asked for. */
void gs_dlvsym_asked(const char *name)
{
    static const char *const ways[] = {"dlsym", "dlvsym", "dlopen", "dlmopen"};
    int known = name && gs_symbol_find(name) >= 0;
    for (size_t i = 0; name && !known && i < sizeof ways / sizeof *ways; i++)
        known = gs_same(name, ways[i]);
    if (known)
        gs_loader_deep();
}

#define DLSYM_ABSENT ((void *)1) /* dlsym.S: the answer is NULL */

typedef void *(*dlsym_type)(void *, const char *);
__attribute__((visibility("hidden"))) dlsym_type gs_dlsym_real;
extern void *dlsym(void *handle, const char *name);

/* Find the dlsym that calls are passed on to; called once, by the stub. Never NULL. */
void *gs_dlsym_resolve(void)
{
    void *found = gs_elf_next("dlsym");
    found = found ? found : (void *)gs_elf_absent;
    __atomic_store_n(&gs_dlsym_real, (dlsym_type)found, __ATOMIC_SEQ_CST);
    return found;
}

/* For the stub: what dlsym(handle, name) shall answer, or NULL to ask the real one. */
void *gs_dlsym_lookup(void *handle, const char *name)
{
    if (gs_same(name, "dlsym"))
        return (void *)dlsym;
    if (gs_same(name, "dlvsym"))
        gs_dlvsym_asked(name); /* and handed out: only the real one knows where RTLD_NEXT is */
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
        return DLSYM_ABSENT; /* our own export must not look like a driver */
    }
    if (!gs_real_get(id))
        gs_real_set(id, real);
    return wrapper;
}

static void count_unknown(const char *name)
{
    static uint32_t logged;
    if (gs_managed() && __atomic_fetch_add(&logged, 1, __ATOMIC_RELAXED) < 64)
        gs_breach(GS_BREACH_UNKNOWN_ENTRY, GS_CARD_NONE, 0, name);
}

/* The driver first; then its function, or our wrapper of it. A function that nobody classified, under whatever
 * name (a newer driver's form of a known one), is recorded, and refused where the promise is strict. */
static CUresult screen(CUresult rc, const char *name, void **function, int *status)
{
    if (rc != CUDA_SUCCESS || !function || !*function || !name)
        return rc;
    void *wrapper = gs_wrapper_for(*function);
    if (wrapper != *function) {
        *function = wrapper;
        return rc;
    }
    if (!gs_managed() || gs_symbol_known(name, *function))
        return rc;
    count_unknown(name);
    if (!(gs.flags & GS_LIMITS_STRICT))
        return rc;
    *function = NULL;
    if (status)
        *status = CU_PROC_NOT_FOUND;
    return CUDA_ERROR_NOT_FOUND;
}

GS_API CUresult cuGetProcAddress(const char *name, void **function, int version, uint64_t flags)
{
    return screen(GS_REAL(cuGetProcAddress)(name, function, version, flags), name, function, NULL);
}

GS_API CUresult cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags, int *status)
{
    return screen(GS_REAL(cuGetProcAddress_v2)(name, function, version, flags, status), name, function, status);
}
