/* What a module image says: the simulator's own text form, PTX, cubins and fatbins.
 *
 * Text (first line `simgpu 1`; in PTX the same lines after `// simgpu `):
 *     kernel NAME [params=8,4,..] [ns=N|ns=$K|us=..|ms=..] [width=PERMILLE|width=$K] [wave] [local=BYTES] [fault=CODE]
 *     global NAME BYTES
 *     code BYTES
 * $K is the kernel's K-th parameter, read as an integer at each launch. Without `ns` a kernel takes
 * the file's kernel_ns per wave of blocks; without `width` what its grid fills.
 * Return convention: CUresult.
 */
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
        add_symbol(module, word[1], strlen(word[1]), strtoull(word[2], NULL, 10));
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

/* The kernels and globals of PTX, with the durations its comments give. */
static CUresult parse_ptx(struct sim_module *module, const char *text)
{
    for (const char *at = text; (at = strstr(at, ".entry")); at++) {
        const char *name = at + 6 + strspn(at + 6, " \t\r\n");
        size_t length = strcspn(name, " \t\r\n({");
        const char *open = name + length + strspn(name + length, " \t\r\n"), *close = strchr(open, ')');
        struct sim_function *function = function_named(module, name, length);
        if (*open == '(' && close)
            parse_ptx_params(function, open, close + 1);
    }
    for (const char *at = text; (at = strstr(at, ".global")); at++) {
        const char *stop = at + strcspn(at, ";={"), *bracket = memchr(at, '[', (size_t)(stop - at));
        const char *end = bracket ? bracket : stop, *type = at;
        for (const char *dot = at + 1; (dot = memchr(dot, '.', (size_t)(end - dot))); dot++)
            type = dot;
        const char *name = type + strcspn(type, " \t");
        name += strspn(name, " \t");
        uint64_t count = bracket ? strtoull(bracket + 1, NULL, 10) : 1;
        if (name < end)
            add_symbol(module, name, (size_t)(end - name), type_bytes(type) * (count ? count : 1));
    }
    for (const char *at = text; (at = strstr(at, "// simgpu ")); at++)
        TRY(parse_line(module, at + 10, strcspn(at + 10, "\n")));
    module->bytes += strlen(text);
    return CUDA_SUCCESS;
}

/* A cubin: its kernels are the sections `.text.NAME`. */
static void parse_elf(struct sim_module *module, const unsigned char *image)
{
    Elf64_Ehdr head;
    memcpy(&head, image, sizeof head);
    const Elf64_Shdr *section = (const Elf64_Shdr *)(image + head.e_shoff);
    const char *names = (const char *)image + section[head.e_shstrndx].sh_offset;
    for (int i = 0; i < head.e_shnum; i++) {
        const char *name = names + section[i].sh_name;
        module->bytes += section[i].sh_flags & SHF_ALLOC ? section[i].sh_size : 0;
        if (!strncmp(name, ".text.", 6))
            function_named(module, name + 6, strlen(name + 6));
    }
}

/* Read an image of any known form into an empty module. */
CUresult sim_image_parse(const void *image, struct sim_module *module)
{
    uint32_t word;
    memcpy(&word, image, sizeof word);
    const char *text = image;
    if (!strncmp(text, "simgpu 1\n", 9))
        return parse_text(module, text);
    if (word == 0x464C457F) { /* ELF */
        parse_elf(module, image);
        return CUDA_SUCCESS;
    }
    if (word == 0xBA55ED50 || word == 0x466243B1) { /* fatbin, and the wrapper that points at one */
        uint64_t size = 0;
        if (word == 0xBA55ED50)
            memcpy(&size, text + 8, sizeof size);
        module->bytes = size;
        module->opaque = 1;
        return CUDA_SUCCESS;
    }
    if (strstr(text, ".version"))
        return parse_ptx(module, text);
    return CUDA_ERROR_INVALID_IMAGE;
}
