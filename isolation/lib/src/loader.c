/* SPDX-License-Identifier: Apache-2.0 */
/* Ways round our place in front of all libraries: RTLD_DEEPBIND, under which a library's own libraries come before
 * us, the driver and the C library with its dlsym among them, and the dlsym behind ours, taken through dlvsym. Before
 * either happens the driver's own symbol table is made to lead to us: that holds whoever looks a name up in it.
 */
#include <dlfcn.h>

#include "core.h"
#include "driver.h"
#include "elf.h"
#include "symbols.h"

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
void gs_dlvsym_look(const char *name)
{
    static const char *const ways[] = {"dlsym", "dlvsym", "dlopen", "dlmopen"};
    int known = name && gs_symbol_find(name) >= 0;
    for (size_t i = 0; name && !known && i < sizeof ways / sizeof *ways; i++)
        known = gs_same(name, ways[i]);
    if (known)
        gs_loader_deep();
}
