/* SPDX-License-Identifier: Apache-2.0 */
/* What a module image says: the simulator's own text form, PTX, cubins and fat binaries.
 *
 * Text (first line `simgpu 1`; in PTX the same lines after `// simgpu `):
 *     kernel NAME [params=8,4,..] [ns=N|ns=$K|us=..|ms=..] [width=PERMILLE|width=$K] [wave] [local=BYTES] [fault=CODE]
 *     global NAME BYTES
 *     code BYTES
 * Of a fat binary the newest cubin counts that the device can run, else the newest PTX; a compressed one is as large as
 * its header says, and has every kernel that it is asked for. `bytes` of a module is all that it takes of the card.
 * $K is the kernel's K-th parameter, read as an integer at each launch. Without `ns` a kernel takes
 * the file's kernel_ns per wave of blocks; without `width` what its grid fills.
 * Return convention: CUresult.
 */
#include "module.h"
#include "sim.h"

#include <elf.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Add a function unless the module has one of that name. */
static struct sim_function *function_named(struct sim_module *module, const char *name, size_t length)
{
    for (size_t i = 0; i < module->functions; i++)
        if (!strncmp(module->function[i]->name, name, length) && !module->function[i]->name[length])
            return module->function[i];
    module->function = realloc(module->function, (module->functions + 1) * sizeof *module->function);
    struct sim_function *function = sim_new(sizeof *function);
    if (!module->function)
        abort();
    *function = (struct sim_function){.tag = SIM_FUNCTION, .module = module, .name = sim_text(name, length),
                                      .ns.parameter = -1, .width.parameter = -1};
    module->function[module->functions++] = function;
    return function;
}

static void add_symbol(struct sim_module *module, const char *name, size_t length, uint64_t bytes)
{
    module->symbol = realloc(module->symbol, (module->symbols + 1) * sizeof *module->symbol);
    if (!module->symbol)
        abort();
    module->symbol[module->symbols++] = (struct sim_symbol){.name = sim_text(name, length), .bytes = bytes};
}

/* One that needs memory of its own; those of a cubin lie in its sections. */
static void add_global(struct sim_module *module, const char *name, size_t length, uint64_t bytes)
{
    add_symbol(module, name, length, bytes);
    module->bytes += sim_round(bytes, 256);
}

/* The function of this name; an opaque image has every function that it is asked for. */
struct sim_function *sim_function_find(struct sim_module *module, const char *name)
{
    for (size_t i = 0; i < module->functions; i++)
        if (!strcmp(module->function[i]->name, name))
            return module->function[i];
    return module->opaque ? function_named(module, name, strlen(name)) : NULL;
}

static void add_param(struct sim_function *function, uint32_t size)
{
    if (function->params == SIM_PARAMS || !size)
        return;
    unsigned i = function->params++;
    uint32_t end = i ? function->offset[i - 1] + function->size[i - 1] : 0, align = size < 8 ? size : 8;
    function->size[i] = size;
    function->offset[i] = (end + align - 1) / align * align;
}

static void set_figure(struct sim_figure *figure, const char *text, uint64_t scale)
{
    figure->given = 1;
    figure->scale = scale;
    figure->parameter = *text == '$' ? atoi(text + 1) : -1;
    figure->value = *text == '$' ? 0 : strtoull(text, NULL, 10);
}

/* One `key=value` of a kernel line. */
static void set_option(struct sim_function *function, char *option)
{
    char *value = strchr(option, '=');
    if (value)
        *value++ = 0;
    else
        value = option + strlen(option);
    if (!strcmp(option, "params")) {
        function->params = 0;
        for (char *at = strtok(value, ","); at; at = strtok(NULL, ","))
            add_param(function, (uint32_t)strtoul(at, NULL, 10));
    } else if (!strcmp(option, "ns")) {
        set_figure(&function->ns, value, 1);
    } else if (!strcmp(option, "us")) {
        set_figure(&function->ns, value, 1000);
    } else if (!strcmp(option, "ms")) {
        set_figure(&function->ns, value, 1000000);
    } else if (!strcmp(option, "width")) {
        set_figure(&function->width, value, 1000);
    } else if (!strcmp(option, "wave")) {
        function->per_wave = 1;
    } else if (!strcmp(option, "local")) {
        function->local_bytes = strtoull(value, NULL, 10);
    } else if (!strcmp(option, "fault")) {
        function->fault = atoi(value);
    }
}

/* One line of the text form, which it is cut up in; a line that says nothing known is an error. */
static CUresult parse_words(struct sim_module *module, char *line)
{
    char *word[16];
    int words = 0;
    for (char *at = line + strspn(line, " \t\r"); *at && words < 16; at += strspn(at, " \t\r")) {
        word[words++] = at;
        at += strcspn(at, " \t\r");
        if (*at)
            *at++ = 0;
    }
    if (!words || *word[0] == '#')
        return CUDA_SUCCESS;
    if (!strcmp(word[0], "kernel") && words > 1) {
        struct sim_function *function = function_named(module, word[1], strlen(word[1]));
        for (int i = 2; i < words; i++)
            set_option(function, word[i]);
    } else if (!strcmp(word[0], "global") && words == 3) {
        add_global(module, word[1], strlen(word[1]), strtoull(word[2], NULL, 10));
    } else if (!strcmp(word[0], "code") && words == 2) {
        module->bytes += strtoull(word[1], NULL, 10);
    } else {
        return CUDA_ERROR_INVALID_IMAGE;
    }
    return CUDA_SUCCESS;
}

static CUresult parse_line(struct sim_module *module, const char *text, size_t length)
{
    char *line = sim_text(text, length);
    CUresult result = parse_words(module, line);
    free(line);
    return result;
}

static CUresult parse_text(struct sim_module *module, const char *at)
{
    for (at = strchr(at, '\n'); at && *at; at = strchr(at, '\n')) {
        at++;
        TRY(parse_line(module, at, strcspn(at, "\n")));
    }
    return CUDA_SUCCESS;
}

/* Bytes of a PTX type such as `.u64`. */
static uint32_t type_bytes(const char *type)
{
    const char *digits = type + strcspn(type, "0123456789");
    uint32_t bits = (uint32_t)strtoul(digits, NULL, 10);
    return bits >= 8 ? bits / 8 : 1;
}

/* `.param .u64 name` or `.param .align 8 .b8 name[16]` within a kernel's parentheses. */
static void parse_ptx_params(struct sim_function *function, const char *at, const char *end)
{
    function->params = 0;
    while ((at = strstr(at, ".param")) && at < end) {
        at += 6;
        const char *stop = at + strcspn(at, ",)"), *type = at, *bracket = memchr(at, '[', (size_t)(stop - at));
        const char *align = strstr(at, ".align");
        if (align && align < stop)
            type = align + 6;
        type = strchr(type, '.');
        uint32_t size = type && type < stop ? type_bytes(type) : 8;
        add_param(function, bracket ? size * (uint32_t)strtoul(bracket + 1, NULL, 10) : size);
        at = stop;
    }
}

/* A copy of PTX in which comments are blank. */
static char *uncommented(const char *text)
{
    char *copy = sim_text(text, strlen(text));
    for (char *at = copy; (at = strchr(at, '/'));) {
        size_t length = at[1] == '/' ? strcspn(at, "\n") : 1;
        if (at[1] == '*')
            length = strstr(at + 2, "*/") ? (size_t)(strstr(at + 2, "*/") + 2 - at) : strlen(at);
        if (length > 1)
            memset(at, ' ', length);
        at += length;
    }
    return copy;
}

/* Is this `.global` the state space of a variable here: no part of an instruction (`ld.global`), no parameter's
 * `.ptr .global`, nothing that is defined elsewhere? */
static int declares(const char *text, const char *at)
{
    const char *from = at;
    if (at > text && !strchr(" \t\r\n;}", at[-1]))
        return 0;
    while (from > text && !strchr("\n;{}(,", from[-1]))
        from--;
    for (const char *c = from; c < at; c++)
        if (!strncmp(c, ".extern", 7) || !strncmp(c, ".ptr", 4))
            return 0;
    return 1;
}

/* `.align 4 .v2 .b8 table[16][2] = {..}, other;`, what follows a variable's state space. */
static void parse_ptx_variables(struct sim_module *module, const char *at)
{
    const char *stop = at + strcspn(at, ";={[,"), *type = at;
    uint64_t element = 1;
    for (const char *dot = at; (dot = memchr(dot, '.', (size_t)(stop - dot))); dot++) {
        if (dot[1] == 'v' && dot[2] >= '2' && dot[2] <= '8' && dot[3] <= ' ')
            element = (uint64_t)(dot[2] - '0');
        type = dot;
    }
    element *= type_bytes(type);
    for (at = type + strcspn(type, " \t"); *at && *at != ';';) {
        at += strspn(at, " \t\r\n,");
        size_t length = strcspn(at, " \t\r\n;={[,");
        uint64_t count = 1;
        const char *name = at, *next = at + length;
        for (; next[strspn(next, " \t\r\n")] == '['; next += strcspn(next, "];") + 1) {
            next += strspn(next, " \t\r\n") + 1;
            count *= strtoull(next, NULL, 0) ? strtoull(next, NULL, 0) : 1;
        }
        if (length)
            add_global(module, name, length, element * count);
        for (int depth = 0; *next && *next != ';' && (*next != ',' || depth); next++)
            depth += *next == '{' ? 1 : *next == '}' ? -1 : 0;
        at = next;
    }
}

/* The kernels and globals of PTX, with the durations its comments give. */
static CUresult parse_ptx(struct sim_module *module, const char *text)
{
    char *clean = uncommented(text);
    for (const char *at = clean; (at = strstr(at, ".entry")); at++) {
        const char *name = at + 6 + strspn(at + 6, " \t\r\n");
        size_t length = strcspn(name, " \t\r\n({");
        const char *open = name + length + strspn(name + length, " \t\r\n"), *close = strchr(open, ')');
        struct sim_function *function = function_named(module, name, length);
        if (*open == '(' && close)
            parse_ptx_params(function, open, close + 1);
    }
    for (const char *at = clean; (at = strstr(at, ".global")); at++)
        if (declares(clean, at))
            parse_ptx_variables(module, at + 7);
    free(clean);
    for (const char *at = text; (at = strstr(at, "// simgpu ")); at++)
        TRY(parse_line(module, at + 10, strcspn(at + 10, "\n")));
    module->bytes += strlen(text);
    return CUDA_SUCCESS;
}

/* A cubin: its kernels are the sections `.text.NAME`, its variables the objects among its symbols. */
static CUresult parse_elf(struct sim_module *module, const unsigned char *image)
{
    Elf64_Ehdr head;
    memcpy(&head, image, sizeof head);
    const Elf64_Shdr *section = (const Elf64_Shdr *)(image + head.e_shoff);
    if (head.e_ident[EI_CLASS] != ELFCLASS64 || head.e_shentsize != sizeof *section || head.e_shstrndx >= head.e_shnum)
        return CUDA_ERROR_INVALID_IMAGE;
    const char *names = (const char *)image + section[head.e_shstrndx].sh_offset;
    for (int i = 0; i < head.e_shnum; i++) {
        const char *name = names + section[i].sh_name;
        module->bytes += section[i].sh_flags & SHF_ALLOC ? section[i].sh_size : 0;
        if (!strncmp(name, ".text.", 6))
            function_named(module, name + 6, strlen(name + 6));
        if (section[i].sh_type != SHT_SYMTAB || section[i].sh_link >= head.e_shnum)
            continue;
        const Elf64_Sym *symbol = (const Elf64_Sym *)(image + section[i].sh_offset);
        const char *strings = (const char *)image + section[section[i].sh_link].sh_offset;
        for (size_t k = 0; k < section[i].sh_size / sizeof *symbol; k++)
            if (ELF64_ST_TYPE(symbol[k].st_info) == STT_OBJECT && symbol[k].st_size)
                add_symbol(module, strings + symbol[k].st_name, strlen(strings + symbol[k].st_name), symbol[k].st_size);
    }
    return CUDA_SUCCESS;
}

/* A fat binary as fatbinary.h of CUDA 11 and the readers of others (cuda-fatbin-decompression, ZLUDA) describe it. */
struct fat_head {
    uint32_t magic;
    uint16_t version, head_bytes;
    uint64_t bytes;
};
struct fat_entry {
    uint16_t kind, version; /* 1 PTX, 2 cubin */
    uint32_t head_bytes;
    uint64_t bytes;
    uint32_t compressed_bytes, options;
    uint16_t minor, major;
    uint32_t arch, name, name_bytes;
    uint64_t flags, zero, full_bytes;
};
enum { FAT_PTX = 1, FAT_CUBIN = 2, FAT_COMPRESSED = 0x1000 | 0x2000 | 0x8000 };

/* The better the larger: 0, not for this architecture. */
static uint64_t fat_rank(const struct fat_entry *entry, uint32_t arch)
{
    if (entry->arch > arch)
        return 0;
    if (entry->kind == FAT_CUBIN)
        return entry->arch / 10 == arch / 10 ? 1000000ull + entry->arch : 0;
    return entry->kind == FAT_PTX ? entry->arch : 0;
}

static CUresult parse_fat(struct sim_module *module, const unsigned char *image, uint32_t arch)
{
    struct fat_head head;
    struct fat_entry entry = {0}, best = {0};
    const unsigned char *payload = NULL;
    memcpy(&head, image, sizeof head);
    const unsigned char *at = image + head.head_bytes, *end = at + head.bytes;
    for (; at + 32 <= end; at += entry.head_bytes + entry.bytes) {
        entry = (struct fat_entry){0};
        memcpy(&entry, at, 32);
        if (entry.head_bytes < 32 || entry.bytes > (uint64_t)(end - at) ||
            entry.head_bytes > (uint64_t)(end - at) - entry.bytes)
            return CUDA_ERROR_INVALID_IMAGE;
        memcpy(&entry, at, entry.head_bytes < sizeof entry ? entry.head_bytes : sizeof entry);
        if (fat_rank(&entry, arch) > fat_rank(&best, arch)) {
            best = entry;
            payload = at + entry.head_bytes;
        }
    }
    if (!payload)
        return CUDA_ERROR_NO_BINARY_FOR_GPU;
    if (!(best.flags & FAT_COMPRESSED))
        return best.kind == FAT_CUBIN ? parse_elf(module, payload)
                                       : parse_ptx(module, sim_text((const char *)payload, best.bytes));
    module->bytes += best.full_bytes;
    module->opaque = 1;
    return CUDA_SUCCESS;
}

/* Read an image of any known form into an empty module for a device of architecture `arch` (90: sm_90). */
CUresult sim_image_parse(const void *image, uint32_t arch, struct sim_module *module)
{
    uint32_t word;
    memcpy(&word, image, sizeof word);
    const char *text = image;
    if (!strncmp(text, "simgpu 1\n", 9))
        return parse_text(module, text);
    if (word == 0x464C457F) /* ELF */
        return parse_elf(module, image);
    if (word == 0xBA55ED50)
        return parse_fat(module, image, arch);
    if (word == 0x466243B1) { /* the wrapper of a linked program: magic, version, address of the fat binary */
        const void *inner;
        memcpy(&inner, text + 8, sizeof inner);
        return inner ? parse_fat(module, inner, arch) : CUDA_ERROR_INVALID_IMAGE;
    }
    if (strstr(text, ".version"))
        return parse_ptx(module, text);
    return CUDA_ERROR_INVALID_IMAGE;
}
