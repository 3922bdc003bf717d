/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "elf.h"

#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#include "sys.h"

struct object {
    uintptr_t base, low, high;
    const char *name;
    ElfW(Sym) * symbols;
    const char *strings;
    const uint32_t *gnu, *classic;
};

struct wanted {
    const char *prefix; /* of the file name; NULL: any */
    const char *symbol;
    int after_us; /* only objects behind ours in load order */
    int passed;
    void *found;
};

/* Addresses in a dynamic section are relocated in place by glibc, not by musl nor in the vDSO. */
static void *placed(const struct object *o, uintptr_t value)
{
    return (void *)(value < o->base ? value + o->base : value);
}

static const char *file_name(const char *path)
{
    const char *last = path;
    for (; *path; path++)
        last = *path == '/' ? path + 1 : last;
    return last;
}

static int open_object(struct object *o, const struct dl_phdr_info *info)
{
    const ElfW(Dyn) *dynamic = NULL;
    *o = (struct object){.base = info->dlpi_addr, .low = UINTPTR_MAX, .name = info->dlpi_name ? info->dlpi_name : ""};
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *part = &info->dlpi_phdr[i];
        uintptr_t low = o->base + part->p_vaddr;
        if (part->p_type == PT_DYNAMIC)
            dynamic = (const void *)low;
        if (part->p_type != PT_LOAD)
            continue;
        o->low = low < o->low ? low : o->low;
        o->high = low + part->p_memsz > o->high ? low + part->p_memsz : o->high;
    }
    for (; dynamic && dynamic->d_tag != DT_NULL; dynamic++) {
        void *at = placed(o, dynamic->d_un.d_ptr);
        if (dynamic->d_tag == DT_SYMTAB)
            o->symbols = at;
        else if (dynamic->d_tag == DT_STRTAB)
            o->strings = at;
        else if (dynamic->d_tag == DT_GNU_HASH)
            o->gnu = at;
        else if (dynamic->d_tag == DT_HASH)
            o->classic = at;
    }
    return o->symbols && o->strings && (o->gnu || o->classic);
}

static ElfW(Sym) *usable(const struct object *o, uint32_t index, const char *name)
{
    ElfW(Sym) *symbol = &o->symbols[index];
    int type = symbol->st_info & 15;
    if (symbol->st_shndx == 0 || symbol->st_value == 0 || type == STT_TLS || type == STT_GNU_IFUNC)
        return NULL;
    return gs_same(o->strings + symbol->st_name, name) ? symbol : NULL;
}

/* DT_GNU_HASH: {buckets, first, words, shift} filter[words] bucket[] chain[]. */
static ElfW(Sym) *by_gnu_hash(const struct object *o, const char *name)
{
    uint32_t hash = 5381;
    for (const char *p = name; *p; p++)
        hash = hash * 33 + (uint8_t)*p;
    uint32_t buckets = o->gnu[0], first = o->gnu[1], words = o->gnu[2];
    const uint32_t *bucket = o->gnu + 4 + words * (sizeof(uintptr_t) / 4), *chain = bucket + buckets;
    uint32_t index = buckets ? bucket[hash % buckets] : 0;
    for (; index >= first && index; index++) {
        uint32_t seen = chain[index - first];
        ElfW(Sym) *found = (seen | 1) == (hash | 1) ? usable(o, index, name) : NULL;
        if (found || seen & 1)
            return found;
    }
    return NULL;
}

static ElfW(Sym) *by_classic_hash(const struct object *o, const char *name)
{
    for (uint32_t index = 1; index < o->classic[1]; index++) {
        ElfW(Sym) *found = usable(o, index, name);
        if (found)
            return found;
    }
    return NULL;
}

static ElfW(Sym) *defined(const struct object *o, const char *name)
{
    return o->gnu ? by_gnu_hash(o, name) : by_classic_hash(o, name);
}

static int visit(struct dl_phdr_info *info, size_t size, void *argument)
{
    struct wanted *want = argument;
    struct object o;
    (void)size;
    if (!open_object(&o, info))
        return 0;
    if ((uintptr_t)visit >= o.low && (uintptr_t)visit < o.high) {
        want->passed = 1;
        return 0;
    }
    const char *name = file_name(o.name);
    if ((want->after_us && !want->passed) || gs_starts(name, "linux-vdso"))
        return 0;
    if (want->prefix && !gs_starts(name, want->prefix))
        return 0;
    const ElfW(Sym) *symbol = defined(&o, want->symbol);
    want->found = symbol ? (void *)(o.base + symbol->st_value) : NULL;
    return want->found != NULL;
}

static void *search(const char *prefix, const char *symbol, int after_us)
{
    struct wanted want = {.prefix = prefix, .symbol = symbol, .after_us = after_us};
    dl_iterate_phdr(visit, &want);
    return want.found;
}

/* A function of the C library, or NULL. Its dl* functions lived in libdl before glibc 2.34. */
void *gs_elf_libc(const char *name)
{
    static const char *const homes[] = {"libc.so", "libdl.so", "libc-2.", "libdl-2.", "ld-musl", "libc.musl"};
    void *found = NULL;
    for (size_t i = 0; !found && i < sizeof homes / sizeof *homes; i++)
        found = search(homes[i], name, 0);
    return found;
}

/* The next definition behind ours in load order (another preload's before libc's), else any. */
void *gs_elf_next(const char *name)
{
    void *found = search(NULL, name, 1);
    return found ? found : search(NULL, name, 0);
}

/* Stands for a function of the loader in a program without one (glibc before 2.34 and no libdl). */
void *gs_elf_absent(void) { return NULL; }

/* `name` in a loaded object whose file name starts with `prefix`, or NULL. Never in ours. */
void *gs_elf_in(const char *prefix, const char *name) { return search(prefix, name, 0); }

struct place {
    const char *prefix;
    uintptr_t low, high;
};

static int placed_at(struct dl_phdr_info *info, size_t size, void *argument)
{
    struct place *place = argument;
    struct object o;
    (void)size;
    (void)open_object(&o, info);
    if (!gs_starts(file_name(o.name), place->prefix))
        return 0;
    place->low = o.low;
    place->high = o.high;
    return 1;
}

/* 1 where the address lies in the loaded object whose file name starts with `prefix`. Remembers where
 * the object was: for one prefix only, and objects that gs_elf_pin() keeps. */
int gs_elf_within(const char *prefix, const void *address)
{
    static uintptr_t low, high;
    if (!__atomic_load_n(&high, __ATOMIC_ACQUIRE)) {
        struct place place = {.prefix = prefix};
        if (!dl_iterate_phdr(placed_at, &place))
            return 0;
        __atomic_store_n(&low, place.low, __ATOMIC_RELAXED);
        __atomic_store_n(&high, place.high, __ATOMIC_RELEASE);
    }
    return (uintptr_t)address >= low && (uintptr_t)address < high;
}

static int covers(struct dl_phdr_info *info, size_t size, void *argument)
{
    struct object o;
    (void)size;
    (void)open_object(&o, info);
    uintptr_t us = (uintptr_t)covers, it = *(uintptr_t *)argument;
    return us >= o.low && us < o.high ? 1 + (it >= o.low && it < o.high) : 0;
}

/* 1 where the address lies in this library. */
int gs_elf_ours(const void *address)
{
    uintptr_t it = (uintptr_t)address;
    return dl_iterate_phdr(covers, &it) == 2;
}

struct holder {
    uintptr_t address, low, high;
    const char *path;
};

static int holds(struct dl_phdr_info *info, size_t size, void *argument)
{
    struct holder *holder = argument;
    struct object o;
    (void)size;
    (void)open_object(&o, info);
    if (holder->address < o.low || holder->address >= o.high)
        return 0;
    *holder = (struct holder){holder->address, o.low, o.high, o.name};
    return 1;
}

/* Keep the object that holds this address loaded for good: what we remember of it, and what we gave to the
 * program, must not dangle when the program closes it. Cheap for an object that is kept already. */
void gs_elf_pin(const void *address)
{
    static struct {
        uintptr_t low, high;
    } kept[8]; /* the driver and NVML, and libraries that stand in front of them */
    static uint32_t count;
    uintptr_t it = (uintptr_t)address;
    for (uint32_t i = 0; i < sizeof kept / sizeof *kept; i++)
        if (it < __atomic_load_n(&kept[i].high, __ATOMIC_ACQUIRE) && it >= kept[i].low)
            return;
    struct holder holder = {.address = it};
    void *(*open)(const char *, int) = (void *(*)(const char *, int))gs_elf_libc("dlopen");
    if (!open || !dl_iterate_phdr(holds, &holder))
        return;
    if (*holder.path) /* the program itself has no name, and stays */
        (void)open(holder.path, RTLD_LAZY | RTLD_NOLOAD | RTLD_NODELETE);
    uint32_t i = __atomic_fetch_add(&count, 1, __ATOMIC_RELAXED);
    if (i < sizeof kept / sizeof *kept) {
        kept[i].low = holder.low;
        __atomic_store_n(&kept[i].high, holder.high, __ATOMIC_RELEASE);
    }
}

struct redirection {
    const char *prefix;
    const char *(*name)(uint32_t);
    void *(*instead)(uint32_t, void *);
    int rc;
};

/* Change the protection of memory whose first page may begin below `low`. 0 or -errno. */
static int protect(uintptr_t low, uintptr_t high, int protection)
{
    int rc = -EINVAL;
    for (uintptr_t page = 4096; rc == -EINVAL && page <= 65536; page *= 4) { /* arm64 has pages of 4, 16 or 64 KiB */
        uintptr_t from = low & ~(page - 1);
        rc = (int)gs_call(SYS_mprotect, (long)from, (long)(high - from), protection, 0, 0, 0);
    }
    return rc;
}

static int redirect(struct dl_phdr_info *info, size_t size, void *argument)
{
    struct redirection *wanted = argument;
    struct object o;
    uintptr_t low = 0, high = 0;
    int protection = 0;
    (void)size;
    if (!open_object(&o, info) || !gs_starts(file_name(o.name), wanted->prefix) ||
        ((uintptr_t)redirect >= o.low && (uintptr_t)redirect < o.high))
        return 0;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *part = &info->dlpi_phdr[i];
        uintptr_t from = o.base + part->p_vaddr, to = from + part->p_memsz, it = (uintptr_t)o.symbols;
        if (part->p_type != PT_LOAD || it < from || it >= to)
            continue;
        low = from, high = to;
        protection = (part->p_flags & PF_R ? PROT_READ : 0) | (part->p_flags & PF_W ? PROT_WRITE : 0) |
                     (part->p_flags & PF_X ? PROT_EXEC : 0);
    }
    int rc = high ? protect(low, high, protection | PROT_WRITE) : -ENOENT;
    const char *name;
    for (uint32_t i = 0; rc == 0 && (name = wanted->name(i)); i++) {
        ElfW(Sym) *symbol = defined(&o, name);
        void *instead = symbol ? wanted->instead(i, (void *)(o.base + symbol->st_value)) : NULL;
        if (instead)
            __atomic_store_n(&symbol->st_value, (uintptr_t)instead - o.base, __ATOMIC_RELEASE);
    }
    if (rc == 0)
        (void)protect(low, high, protection);
    else
        wanted->rc = rc;
    return 0;
}

/* Make the symbol tables of loaded objects whose file name starts with `prefix` lead elsewhere, whoever asks them
 * and however: `name(i)` are the symbols, until it is NULL, `instead(i, real)` where each shall lead, NULL: where it
 * does. Called with the loader's lock held, so never by two threads at once. 0, or the -errno of an object whose
 * table cannot be written to. */
int gs_elf_redirect(const char *prefix, const char *(*name)(uint32_t), void *(*instead)(uint32_t, void *))
{
    struct redirection wanted = {.prefix = prefix, .name = name, .instead = instead};
    (void)dl_iterate_phdr(redirect, &wanted);
    return wanted.rc;
}

static int named(struct dl_phdr_info *info, size_t size, void *argument)
{
    struct object o;
    (void)size;
    (void)open_object(&o, info);
    if ((uintptr_t)named < o.low || (uintptr_t)named >= o.high)
        return 0;
    *(const char **)argument = o.name;
    return 1;
}

/* The file that this library was loaded from, or NULL. */
const char *gs_elf_our_path(void)
{
    const char *path = NULL;
    dl_iterate_phdr(named, &path);
    return path;
}
