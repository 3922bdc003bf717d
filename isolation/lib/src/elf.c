#define _GNU_SOURCE
#include "elf.h"

#include <link.h>

#include "sys.h"

struct object {
    uintptr_t base, low, high;
    const char *name;
    const ElfW(Sym) * symbols;
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
static const void *placed(const struct object *o, uintptr_t value)
{
    return (const void *)(value < o->base ? value + o->base : value);
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
        const void *at = placed(o, dynamic->d_un.d_ptr);
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

static void *usable(const struct object *o, uint32_t index, const char *name)
{
    const ElfW(Sym) *symbol = &o->symbols[index];
    int type = symbol->st_info & 15;
    if (symbol->st_shndx == 0 || symbol->st_value == 0 || type == STT_TLS || type == STT_GNU_IFUNC)
        return NULL;
    return gs_same(o->strings + symbol->st_name, name) ? (void *)(o->base + symbol->st_value) : NULL;
}

/* DT_GNU_HASH: {buckets, first, words, shift} filter[words] bucket[] chain[]. */
static void *by_gnu_hash(const struct object *o, const char *name)
{
    uint32_t hash = 5381;
    for (const char *p = name; *p; p++)
        hash = hash * 33 + (uint8_t)*p;
    uint32_t buckets = o->gnu[0], first = o->gnu[1], words = o->gnu[2];
    const uint32_t *bucket = o->gnu + 4 + words * (sizeof(uintptr_t) / 4), *chain = bucket + buckets;
    uint32_t index = buckets ? bucket[hash % buckets] : 0;
    for (; index >= first && index; index++) {
        uint32_t seen = chain[index - first];
        void *found = (seen | 1) == (hash | 1) ? usable(o, index, name) : NULL;
        if (found || seen & 1)
            return found;
    }
    return NULL;
}

static void *by_classic_hash(const struct object *o, const char *name)
{
    for (uint32_t index = 1; index < o->classic[1]; index++) {
        void *found = usable(o, index, name);
        if (found)
            return found;
    }
    return NULL;
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
    want->found = o.gnu ? by_gnu_hash(&o, want->symbol) : by_classic_hash(&o, want->symbol);
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
 * the object was: for one prefix only, and objects that stay loaded. */
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
