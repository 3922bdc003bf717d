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
    if (!found)
        found = (void *)no_driver; /* a C library without dlsym: nobody can have called us */
    __atomic_store_n(&gs_dlsym_real, (dlsym_type)found, __ATOMIC_SEQ_CST);
    return found;
}

#ifdef GS_STRICT_HOOK
/* For the forwarders: where entry point `id` shall jump to. */
void *gs_forward_resolve(uint32_t id) { return gs_resolve((enum gs_id)id); }
#endif

/* The loaded driver's (or NVML's) own function, or NULL where it is not loaded or has no such name.
 * That a loaded driver lacks a name is remembered. */
void *gs_real_or_null(enum gs_id id)
{
    void *real = __atomic_load_n(&gs_reals[id], __ATOMIC_RELAXED);
    if (real)
        return real == (void *)no_such_call ? NULL : real;
    const char *name = name_of((int)id);
    const char *library = name[0] == 'n' ? "libnvidia-ml.so" : "libcuda.so";
    real = gs_elf_in(library, name);
    if (!real && GS_STRICT && name[0] == 'c' && gs_driver_load() == 0)
        real = gs_elf_in(library, name);
    if (real)
        __atomic_store_n(&gs_reals[id], real, __ATOMIC_RELAXED);
    else if (gs_elf_in(library, name[0] == 'n' ? "nvmlInit_v2" : "cuInit"))
        __atomic_store_n(&gs_reals[id], (void *)no_such_call, __ATOMIC_RELAXED);
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

/* What to hand out instead of the driver's function `real`: its wrapper, or `real` itself. Keyed by
 * the pointer, because the driver maps one name to several functions by version and stream mode. */
void *gs_wrapper_for(void *real)
{
    static uint32_t ready;
    if (!__atomic_load_n(&ready, __ATOMIC_ACQUIRE)) {
        for (size_t i = 0; i < WRAPPERS; i++)
            (void)gs_real_or_null((enum gs_id)wrappers[i].id);
        __atomic_store_n(&ready, 1, __ATOMIC_RELEASE);
    }
    for (size_t i = 0; i < WRAPPERS; i++)
        if (__atomic_load_n(&gs_reals[wrappers[i].id], __ATOMIC_RELAXED) == real)
            return wrappers[i].function;
    return real;
}

/* For the stub: what dlsym(handle, name) shall answer, or NULL to ask the real one. */
void *gs_dlsym_lookup(void *handle, const char *name)
{
    if (gs_same(name, "dlsym"))
        return (void *)dlsym;
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
    void *known = __atomic_load_n(&gs_reals[id], __ATOMIC_RELAXED);
    if (!known || known == (void *)no_such_call)
        __atomic_store_n(&gs_reals[id], real, __ATOMIC_RELAXED);
    return wrapper;
}
