/* SPDX-License-Identifier: Apache-2.0 */
/* Modules and libraries: code and `__device__` variables, charged by what their images say (image.h). A module is
 * loaded when the driver is asked to, a library when something of it is first used on a device. The driver packs them
 * into blocks of 2 MiB, context by context, and so does the ledger; an image of no known form has a block of its own.
 */
#include "hook.h"
#include "image.h"
#include "module.h"
#include "spin.h"

#define UNIT 256ULL /* bytes; the ledger counts a context's code in these */
#define DEVICES 64
enum { CAPABILITY_MAJOR = 75, CAPABILITY_MINOR = 76 }; /* CUdevice_attribute */
enum { EAGER = 1 }; /* CUmoduleLoadingMode */
enum { INVALID_IMAGE = 200, NO_BINARY_FOR_GPU = 209, INVALID_PTX = 218 };

static uint32_t code_lock, load_lock;

static uint32_t units(uint64_t bytes)
{
    uint64_t count = (bytes ? bytes : GS_CHUNK) / UNIT + (bytes % UNIT != 0);
    return count > UINT32_MAX ? UINT32_MAX : (uint32_t)count; /* 1 TiB: no promise holds it */
}

/* Architecture of a device as images name it (90: sm_90); 0 where the driver does not tell. */
static int arch_of(CUdevice device)
{
    int major = 0, minor = 0;
    if (GS_REAL(cuDeviceGetAttribute)(&major, CAPABILITY_MAJOR, device) != CUDA_SUCCESS ||
        GS_REAL(cuDeviceGetAttribute)(&minor, CAPABILITY_MINOR, device) != CUDA_SUCCESS)
        return 0;
    return major * 10 + minor;
}

static int arch_here(void)
{
    CUdevice device;
    return GS_REAL(cuCtxGetDevice)(&device) == CUDA_SUCCESS ? arch_of(device) : 0;
}

/* Code of a context grows by `more` units, in whole blocks; `bytes` is what that charged. CUDA_SUCCESS, or
 * CUDA_ERROR_OUT_OF_MEMORY with the breach recorded. Pair with grown(), and then with shrink(). */
static CUresult grow(int card, uint64_t context, uint32_t more, uint64_t *charged, const char *api)
{
    struct gs_entry code = {.key = context, .card = (int16_t)card, .kind = GS_KIND_CODE, .extra = context};
    gs_spin_enter(&code_lock);
    (void)gs_table_get(context, GS_KIND_CODE, &code);
    uint64_t all = (uint64_t)code.count + more, bytes = (all * UNIT + GS_CHUNK - 1) / GS_CHUNK * GS_CHUNK;
    CUresult rc = CUDA_SUCCESS;
    *charged = 0;
    if (bytes > code.bytes || card < 0)
        rc = gs_charge(card, all > UINT32_MAX ? UINT64_MAX : bytes - code.bytes, api);
    if (rc == CUDA_SUCCESS) {
        *charged = bytes - code.bytes;
        code.bytes = bytes;
        code.count = (uint32_t)all;
        (void)gs_table_put(&code);
    }
    gs_spin_leave(&code_lock);
    return rc;
}

/* The driver has answered: a sample may correct the charge from now on. */
static void grown(int card, uint64_t charged)
{
    if (charged)
        gs_estimate_done(card, charged);
}

static void shrink(uint64_t context, uint32_t less)
{
    struct gs_entry code;
    gs_spin_enter(&code_lock);
    if (gs_table_take(context, GS_KIND_CODE, &code) == 0) { /* else it went with its context */
        uint64_t before = code.bytes;
        code.count -= less < code.count ? less : code.count;
        code.bytes = (code.count * UNIT + GS_CHUNK - 1) / GS_CHUNK * GS_CHUNK;
        if (code.count)
            (void)gs_table_put(&code);
        gs_estimate_uncharge(code.card, before - code.bytes);
    }
    gs_spin_leave(&code_lock);
}

#define LOAD(name, parameters, size, ...)                                                                              \
    GS_API CUresult name parameters                                                                                    \
    {                                                                                                                  \
        int card;                                                                                                      \
        if (!gs_managed() || (card = gs_card_here()) == GS_CARD_NONE)                                                  \
            return GS_REAL(name)(__VA_ARGS__);                                                                         \
        struct gs_entry entry = {.card = (int16_t)card, .kind = GS_KIND_MODULE, .count = units(size),                  \
                                 .extra = gs_context_here()};                                                          \
        uint64_t charged;                                                                                              \
        CUresult rc = grow(card, entry.extra, entry.count, &charged, __func__);                                        \
        if (rc != CUDA_SUCCESS)                                                                                        \
            return rc;                                                                                                 \
        rc = GS_REAL(name)(__VA_ARGS__);                                                                               \
        grown(card, charged);                                                                                          \
        if (rc != CUDA_SUCCESS) {                                                                                      \
            shrink(entry.extra, entry.count);                                                                          \
            return rc;                                                                                                 \
        }                                                                                                              \
        entry.key = (uint64_t)*it;                                                                                     \
        (void)gs_table_put(&entry);                                                                                    \
        return rc;                                                                                                     \
    }
#define IMAGE(image) gs_image_bytes(image, UINT64_MAX, arch_here())

LOAD(cuModuleLoad, (CUmodule * it, const char *path), gs_image_file_bytes(path, arch_here()), it, path)
LOAD(cuModuleLoadData, (CUmodule * it, const void *image), IMAGE(image), it, image)
LOAD(cuModuleLoadFatBinary, (CUmodule * it, const void *image), IMAGE(image), it, image)
LOAD(cuModuleLoadDataEx, (CUmodule * it, const void *image, unsigned number, void *options, void **values),
     IMAGE(image), it, image, number, options, values)

/* Out of the table before the driver is asked: it may hand the handle to another thread at once. */
GS_API CUresult cuModuleUnload(CUmodule it)
{
    struct gs_entry entry;
    int known = gs_managed() && gs_table_take((uint64_t)it, GS_KIND_MODULE, &entry) == 0;
    CUresult rc = GS_REAL(cuModuleUnload)(it);
    if (known && rc == CUDA_SUCCESS)
        shrink(entry.extra, entry.count);
    else if (known)
        (void)gs_table_put(&entry);
    return rc;
}

/* A library on a card. Handles are addresses of a program: their upper byte is free. */
static uint64_t key_of(CUlibrary library, int card) { return (uint64_t)library | (uint64_t)card << 56; }

static uint64_t library_bytes(const void *image, const char *path, int arch)
{
    return path ? gs_image_file_bytes(path, arch) : gs_image_bytes(image, UINT64_MAX, arch);
}

/* Where programs are loaded eagerly a library is in the current context as soon as it is made: charge it before.
 * `now` is what made() wants to know; its kind is GS_KIND_NONE where nothing is loaded yet. */
static CUresult begin(struct gs_entry *now, const void *image, const char *path, const char *api)
{
    int mode = 0, card;
    *now = (struct gs_entry){0};
    if (!gs_managed() || !GS_HAS(cuModuleGetLoadingMode) ||
        GS_REAL(cuModuleGetLoadingMode)(&mode) != CUDA_SUCCESS || mode != EAGER || (card = gs_card_here()) < 0)
        return CUDA_SUCCESS;
    *now = (struct gs_entry){.card = (int16_t)card, .kind = GS_KIND_LOADED, .extra = gs_context_here(),
                             .count = units(library_bytes(image, path, arch_here()))};
    return grow(card, now->extra, now->count, &now->bytes, api);
}

/* A library was made: remember what it will take of each card. */
static CUresult made(CUresult rc, struct gs_entry *now, CUlibrary *library, const void *image, const char *path)
{
    int devices = 0, known = -1;
    uint64_t bytes = 0;
    grown(now->card, now->bytes);
    now->bytes = 0;
    if (rc != CUDA_SUCCESS && now->kind)
        shrink(now->extra, now->count);
    if (rc != CUDA_SUCCESS || !gs_managed() || GS_REAL(cuDeviceGetCount)(&devices) != CUDA_SUCCESS)
        return rc;
    for (CUdevice device = 0; device < devices && device < DEVICES; device++) {
        int card = gs_card_of(device), arch = arch_of(device);
        if (card < 0)
            continue;
        if (arch != known)
            bytes = library_bytes(image, path, arch);
        known = arch;
        struct gs_entry entry = {.key = key_of(*library, card), .card = (int16_t)card, .kind = GS_KIND_LIBRARY,
                                 .count = units(bytes), .extra = (uint64_t)*library};
        (void)gs_table_put(&entry);
    }
    now->key = key_of(*library, now->card);
    if (now->kind)
        (void)gs_table_put(now);
    return rc;
}

#define LIBRARY(name, parameters, image, path, ...)                                                                    \
    GS_API CUresult name parameters                                                                                    \
    {                                                                                                                  \
        struct gs_entry now;                                                                                           \
        CUresult rc = begin(&now, image, path, __func__);                                                              \
        return rc ? rc : made(GS_REAL(name)(__VA_ARGS__), &now, it, image, path);                                      \
    }
#define HOW void *jit, void **jit_values, unsigned jits, void *options, void **values, unsigned number

LIBRARY(cuLibraryLoadData, (CUlibrary * it, const void *code, HOW), code, NULL, it, code, jit, jit_values, jits,
        options, values, number)
LIBRARY(cuLibraryLoadFromFile, (CUlibrary * it, const char *path, HOW), NULL, path, it, path, jit, jit_values, jits,
        options, values, number)

/* The driver may load this library into the current context: charge it if that is the first time on this device.
 * `loaded` is what settle() wants to know; its kind is GS_KIND_NONE where there is nothing to settle. */
static CUresult use(CUlibrary library, struct gs_entry *loaded, const char *api)
{
    int card = gs_card_here();
    CUresult rc = CUDA_SUCCESS;
    *loaded = (struct gs_entry){0};
    if (card < 0)
        return card == GS_CARD_NONE ? rc : gs_charge(card, GS_CHUNK, api);
    uint64_t key = key_of(library, card);
    struct gs_entry size;
    gs_spin_enter(&load_lock);
    if (gs_table_get(key, GS_KIND_LOADED, &size) < 0 && gs_table_get(key, GS_KIND_LIBRARY, &size) == 0) {
        struct gs_entry entry = {.key = key, .card = (int16_t)card, .kind = GS_KIND_LOADED, .count = size.count,
                                 .extra = gs_context_here()};
        uint64_t charged;
        rc = grow(card, entry.extra, entry.count, &charged, api);
        if (rc == CUDA_SUCCESS) {
            (void)gs_table_put(&entry);
            *loaded = entry;
            loaded->bytes = charged;
        }
    }
    gs_spin_leave(&load_lock);
    return rc;
}

/* The driver has answered: what it could not load takes nothing. Other errors come after loading. */
static CUresult settle(const struct gs_entry *loaded, CUresult rc)
{
    struct gs_entry entry;
    int failed = rc == CUDA_ERROR_OUT_OF_MEMORY || rc == INVALID_IMAGE || rc == NO_BINARY_FOR_GPU || rc == INVALID_PTX;
    grown(loaded->card, loaded->bytes);
    if (failed && loaded->kind && gs_table_take(loaded->key, GS_KIND_LOADED, &entry) == 0)
        shrink(entry.extra, entry.count);
    return rc;
}

#define USE(name, parameters, of, ...)                                                                                 \
    GS_API CUresult name parameters                                                                                    \
    {                                                                                                                  \
        struct gs_entry loaded = {0};                                                                                  \
        CUresult rc = gs_managed() ? use(of, &loaded, __func__) : CUDA_SUCCESS;                                        \
        return rc ? rc : settle(&loaded, GS_REAL(name)(__VA_ARGS__));                                                  \
    }

USE(cuLibraryGetModule, (CUmodule * module, CUlibrary it), it, module, it)
USE(cuLibraryGetGlobal, (CUdeviceptr * at, size_t *bytes, CUlibrary it, const char *name), it, at, bytes, it, name)
USE(cuLibraryGetManaged, (CUdeviceptr * at, size_t *bytes, CUlibrary it, const char *name), it, at, bytes, it, name)

/* The library of a kernel; NULL: no kernel of any, or one that was found unseen. */
static CUlibrary library_of(CUfunction kernel)
{
    struct gs_entry entry;
    return gs_table_get((uint64_t)kernel, GS_KIND_KERNEL, &entry) == 0 ? (CUlibrary)entry.extra : NULL;
}

USE(cuKernelGetFunction, (CUfunction * function, CUfunction kernel), library_of(kernel), function, kernel)

/* A kernel may be launched like a function, on any device: remember whose it is. */
static void found(CUfunction kernel, CUlibrary library)
{
    struct gs_entry entry = {.key = (uint64_t)kernel, .card = GS_CARD_NONE, .kind = GS_KIND_KERNEL,
                             .extra = (uint64_t)library};
    (void)gs_table_put(&entry);
    __atomic_store_n(gs_ready_place(kernel), 0, __ATOMIC_RELAXED); /* its handle may have been another function's */
    __atomic_store_n(&gs_kernels, 1, __ATOMIC_RELEASE);
}

GS_API CUresult cuLibraryGetKernel(CUfunction *kernel, CUlibrary it, const char *name)
{
    CUresult rc = GS_REAL(cuLibraryGetKernel)(kernel, it, name);
    if (rc == CUDA_SUCCESS && gs_managed())
        found(*kernel, it);
    return rc;
}

GS_API CUresult cuLibraryEnumerateKernels(CUfunction *kernels, unsigned room, CUlibrary it)
{
    unsigned number = 0;
    CUresult rc = GS_REAL(cuLibraryEnumerateKernels)(kernels, room, it);
    if (rc == CUDA_SUCCESS && gs_managed() && GS_REAL(cuLibraryGetKernelCount)(&number, it) == CUDA_SUCCESS)
        for (unsigned i = 0; i < room && i < number; i++)
            found(kernels[i], it);
    return rc;
}

/* A function that is launched for the first time, or the kernel of a library that is not on every card: it is loaded
 * now, so that the charge and the driver's answer belong together. */
CUresult gs_kernel_first(CUfunction function, const char *api)
{
    struct gs_entry loaded = {0};
    CUfunction here;
    CUlibrary library = library_of(function);
    int everywhere = 1;
    if (library) {
        CUresult rc = use(library, &loaded, api);
        if (rc == CUDA_SUCCESS && loaded.kind)
            rc = settle(&loaded, GS_REAL(cuKernelGetFunction)(&here, function));
        if (rc != CUDA_SUCCESS)
            return rc;
        for (uint32_t card = 0; card < gs.cards; card++)
            everywhere &= gs_table_get(key_of(library, (int)card), GS_KIND_LOADED, &loaded) == 0;
    }
    if (everywhere)
        __atomic_store_n(gs_ready_place(function), (uint64_t)function, __ATOMIC_RELAXED);
    return CUDA_SUCCESS;
}

GS_API CUresult cuLibraryUnload(CUlibrary it)
{
    struct gs_entry loaded[GS_CARDS];
    struct gs_cut cut;
    if (!gs_managed())
        return GS_REAL(cuLibraryUnload)(it);
    gs_table_cut((uint64_t)it, &cut); /* its sizes and kernels */
    for (int card = 0; card < GS_CARDS; card++)
        if (gs_table_take(key_of(it, card), GS_KIND_LOADED, &loaded[card]) < 0)
            loaded[card].kind = GS_KIND_NONE;
    CUresult rc = GS_REAL(cuLibraryUnload)(it);
    gs_table_cut_end(&cut, rc == CUDA_SUCCESS ? gs_release_entry : NULL);
    for (int card = 0; card < GS_CARDS; card++)
        if (loaded[card].kind && rc == CUDA_SUCCESS)
            shrink(loaded[card].extra, loaded[card].count);
        else if (loaded[card].kind)
            (void)gs_table_put(&loaded[card]);
    gs_kernels_forget();
    return rc;
}

/* A forked child has none. */
static void forget_all(void) { code_lock = load_lock = 0; }

GS_FORGET_AFTER_FORK(forget_all);
