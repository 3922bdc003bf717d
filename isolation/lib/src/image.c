/* SPDX-License-Identifier: Apache-2.0 */
/* Cubins, PTX and fat binaries, sized without loading them.
 *
 * An image is the program's own input: it may lie, be cut, or point past the end of its memory. Nothing is read
 * that is not there, every loop ends with the image, sums that overflow are UINT64_MAX (which no promise holds), and
 * what cannot be understood is 0 bytes: the caller charges a block of its own for that.
 *
 * Sources. ELF: System V gABI, "Sections" (a cubin is ELF64; `.nv.global` is SHT_NOBITS). PTX: PTX ISA, "State
 * spaces", "Variables". Fat binaries are not documented by NVIDIA; the layout is that of fatbinary.h of the CUDA
 * toolkits up to 11 and of the readers github.com/n-eiling/cuda-fatbin-decompression and github.com/vosen/ZLUDA:
 *     wrapper  magic 0x466243b1 u32, version u32, address of the fat binary u64, name u64
 *     header   magic 0xba55ed50 u32, version u16, header bytes u16, bytes of all entries u64
 *     entry    kind u16 (1 PTX, 2 cubin), version u16, header bytes u32, payload bytes u64, compressed bytes u32,
 *              u32, minor u16, major u16, architecture u32 (90: sm_90), name u32 + u32, flags u64, u64,
 *              uncompressed bytes u64
 */
#include "image.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#include "sys.h"

#define WRAPPER 0x466243b1U
#define FAT 0xba55ed50U
#define ELF 0x464c457fU
#define PAGE 4096ULL /* of the smallest kind */
#define COMPRESSED (0x1000 | 0x2000 | 0x8000) /* two forms of LZ4, and zstd */
#define SECTIONS (1U << 24)
#define SHF_ALLOC 2
enum { PTX = 1, CUBIN = 2 };

/* Memory of an image: `length` bytes at most, of which `sure` are known to be there. */
struct view {
    const uint8_t *at;
    uint64_t length, sure;
};

static uint64_t sum(uint64_t a, uint64_t b) { return a > UINT64_MAX - b ? UINT64_MAX : a + b; }

static uint64_t times(uint64_t a, uint64_t b) { return __builtin_mul_overflow(a, b, &a) ? UINT64_MAX : a; }

/* Can this page be read? The kernel looks at a set of signals before it looks at what to do with it, which is nothing
 * that it knows: EFAULT, or EINVAL. */
static int readable(uint64_t page)
{
    return gs_call(SYS_rt_sigprocmask, -1, (long)page, 0, 8, 0, 0) == -22;
}

/* Are `bytes` at `offset` there? */
static int have(struct view *v, uint64_t offset, uint64_t bytes)
{
    if (offset > v->length || bytes > v->length - offset || (uint64_t)v->at > UINT64_MAX - offset - bytes)
        return 0;
    if (offset + bytes <= v->sure)
        return 1;
    uint64_t first = (uint64_t)v->at + offset, end = first + bytes;
    for (uint64_t page = first / PAGE * PAGE; page < end; page += PAGE)
        if (!readable(page))
            return 0;
    if (offset <= v->sure) /* no gap: whole pages from here on need no second look */
        v->sure = (end + PAGE - 1) / PAGE * PAGE - (uint64_t)v->at;
    return 1;
}

/* A little-endian number of `bytes`, which `have` has found. */
static uint64_t number(const struct view *v, uint64_t offset, int bytes)
{
    uint64_t value = 0;
    for (int i = bytes; i-- > 0;)
        value = value << 8 | v->at[offset + (uint64_t)i];
    return value;
}

/* A cubin: all sections that are given memory, those without contents in the file (NOBITS) among them. */
static uint64_t cubin_bytes(struct view *v)
{
    uint64_t bytes = 0;
    if (!have(v, 0, 64) || v->at[4] != 2)
        return 0;
    uint64_t table = number(v, 40, 8), stride = number(v, 58, 2), count = number(v, 60, 2);
    if (stride < 64 || !have(v, table, 64))
        return 0;
    if (!count) /* more than its 16 bits hold: the first section tells */
        count = number(v, table + 32, 8);
    for (uint64_t i = 0; i < count && i < SECTIONS; i++) {
        uint64_t section = table + i * stride;
        if (!have(v, section, 64))
            return 0;
        if (number(v, section + 8, 8) & SHF_ALLOC)
            bytes = sum(bytes, number(v, section + 32, 8));
    }
    return bytes;
}

static int is_space(int c) { return c == ' ' || (c >= '\t' && c <= '\r'); }
static int is_digit(int c) { return c >= '0' && c <= '9'; }
static int is_word(int c) { return is_digit(c) || c == '_' || c == '$' || ((c | 32) >= 'a' && (c | 32) <= 'z'); }

/* The character at an offset, 0 at the end. */
static int peek(struct view *v, uint64_t at) { return have(v, at, 1) ? v->at[at] : 0; }

/* Past white space and comments. */
static uint64_t skip(struct view *v, uint64_t at)
{
    for (int c; (c = peek(v, at)) != 0;) {
        if (is_space(c)) {
            at++;
        } else if (c == '/' && peek(v, at + 1) == '/') {
            while ((c = peek(v, at)) != 0 && c != '\n')
                at++;
        } else if (c == '/' && peek(v, at + 1) == '*') {
            for (at += 2; (c = peek(v, at)) != 0 && !(c == '*' && peek(v, at + 1) == '/'); at++)
                ;
            at += c ? 2 : 0;
        } else {
            break;
        }
    }
    return at;
}

static int is(struct view *v, uint64_t at, uint64_t end, const char *word)
{
    for (; at < end && *word && v->at[at] == (uint8_t)*word; at++, word++)
        ;
    return at == end && !*word;
}

/* Bytes of the type at `at`, a name after its dot: the digits are bits, `x2` doubles; opaque types (.texref) are
 * handles of 8 bytes. */
static uint64_t type_bytes(const struct view *v, uint64_t at, uint64_t end)
{
    uint64_t bits = 0, times = 1;
    while (at < end && !is_digit(v->at[at]))
        at++;
    for (; at < end && is_digit(v->at[at]); at++)
        bits = bits < 4096 ? bits * 10 + (uint64_t)(v->at[at] - '0') : bits;
    if (at + 1 < end && v->at[at] == 'x')
        times = (uint64_t)(v->at[at + 1] - '0') % 10;
    return bits ? (bits * times + 7) / 8 : 8;
}

/* An unsigned integer constant: decimal, octal, 0x or 0b. UINT64_MAX: something else. */
static uint64_t constant(struct view *v, uint64_t *at)
{
    uint64_t value = 0, base = 10;
    if (!is_digit(peek(v, *at)))
        return UINT64_MAX;
    if (peek(v, *at) == '0') {
        int mark = peek(v, *at + 1) | 32;
        base = mark == 'x' ? 16 : mark == 'b' ? 2 : 8;
        *at += base == 8 ? 1 : 2;
    }
    for (int c; (c = peek(v, *at)) != 0 && is_word(c); ++*at) {
        uint64_t digit = is_digit(c) ? (uint64_t)(c - '0') : (uint64_t)((c | 32) - 'a') + 10;
        value = digit < base ? sum(times(value, base), digit) : value; /* else a suffix: 8U */
    }
    return value;
}

/* Elements of an initializer `{ .. }`, however nested; `at` ends behind it. */
static uint64_t elements(struct view *v, uint64_t *at)
{
    uint64_t count = 1, depth = 0;
    for (int c; (c = peek(v, *at = skip(v, *at))) != 0 && c != ';'; ++*at) {
        depth += c == '{';
        count += c == ',' && depth;
        if ((c == '}' && depth && !--depth) || (c == ',' && !depth))
            break;
    }
    return count;
}

/* The declarators of one statement: `name`, `name[8][4]`, `name[] = {..}`, with commas between. */
static uint64_t variables(struct view *v, uint64_t *at, uint64_t element)
{
    uint64_t bytes = 0;
    for (;;) {
        uint64_t count = 1, unsized = 0;
        while (is_word(peek(v, *at = skip(v, *at))) || peek(v, *at) == '%')
            ++*at;
        while (peek(v, *at = skip(v, *at)) == '[') {
            *at = skip(v, *at + 1);
            int empty = peek(v, *at) == ']';
            unsized |= (uint64_t)empty;
            count = times(count, empty ? 1 : constant(v, at));
            if (peek(v, *at = skip(v, *at)) != ']')
                return UINT64_MAX; /* no constant that we can read: nobody knows how much this is */
            ++*at;
        }
        if (peek(v, *at) == '=') {
            ++*at;
            uint64_t listed = elements(v, at);
            count = unsized && listed > count ? listed : count;
        }
        count = times(count, element);
        bytes = sum(bytes, sum(count, -count % 256)); /* each begins at an address of its own */
        while (peek(v, *at = skip(v, *at)) == '}')
            ++*at;
        if (peek(v, *at) != ',')
            return bytes;
        ++*at;
    }
}

/* Past `( .. )`. */
static uint64_t past_bracket(struct view *v, uint64_t at)
{
    for (int c; (c = peek(v, at)) != 0 && c != ';'; at++)
        if (c == ')')
            return at + 1;
    return at;
}

/* Past the rest of a statement: its semicolon, or a brace (what is in a function is looked at like the rest). Some
 * directives end with nothing: the next one is known by its dot after white space, unless that is a parameter's. */
static uint64_t past(struct view *v, uint64_t at, int directive)
{
    int open = 0;
    for (int c; (c = peek(v, at)) != 0; at++) {
        uint64_t next = skip(v, at);
        if (next > at && peek(v, next) == '.' && directive && !open)
            return next;
        at = next;
        if ((c = peek(v, at)) == 0)
            break;
        open += c == '(' ? 1 : c == ')' && open ? -1 : 0;
        if (c == ';' || c == '{' || c == '}')
            return at + 1;
        for (; c == '"' && peek(v, at + 1) && peek(v, at + 1) != '"' && peek(v, at + 1) != '\n'; at++)
            ;
        at += c == '"';
    }
    return at;
}

/* One statement of PTX: what it puts into the card's memory. `at` ends where the next begins. */
static uint64_t statement(struct view *v, uint64_t *at)
{
    uint64_t element = 1, bytes = 0;
    int global = 0, outside = 0, directive = peek(v, *at) == '.';
    while (peek(v, *at) == '.') {
        uint64_t from = *at + 1, end = from;
        while (is_word(peek(v, end)))
            end++;
        *at = end;
        if (is(v, from, end, "align"))
            *at = skip(v, end), (void)constant(v, at);
        else if (is(v, from, end, "attribute"))
            *at = past_bracket(v, end);
        else if (is(v, from, end, "extern"))
            outside = 1;
        else if (is(v, from, end, "global") || is(v, from, end, "const"))
            global = 1;
        else if (end == from + 2 && v->at[from] == 'v' && is_digit(v->at[from + 1]))
            element = times(element, (uint64_t)(v->at[from + 1] - '0'));
        else if (global)
            element = times(element, type_bytes(v, from, end));
        else if (!is(v, from, end, "visible") && !is(v, from, end, "weak") && !is(v, from, end, "common"))
            break;
        *at = skip(v, *at);
    }
    if (global && !outside)
        bytes = variables(v, at, element);
    *at = past(v, *at, directive);
    return bytes;
}

/* PTX: its variables, and for the code that is made of it as much as its text. */
static uint64_t ptx_bytes(struct view *v)
{
    uint64_t bytes = 0, at = 0;
    while (peek(v, at = skip(v, at)))
        bytes = sum(bytes, statement(v, &at));
    return sum(bytes, at);
}

/* May code of this kind for `made` run on a card of `arch`? Cubins on the same major and a minor that is no older; PTX
 * on everything that is no older. */
static int runs(uint64_t kind, uint64_t made, uint64_t arch)
{
    return !arch || (made <= arch && (kind == PTX || made / 10 == arch / 10));
}

static uint64_t plain_bytes(struct view *v);

/* The entry that the driver would take: the newest cubin that runs here, else the newest PTX. */
static uint64_t fat_bytes(struct view *v, int arch)
{
    uint64_t best = 0, best_rank = 0, largest = 0;
    if (!have(v, 0, 16))
        return 0;
    uint64_t at = number(v, 6, 2), end = sum(at, number(v, 8, 8));
    int jit = getenv("CUDA_FORCE_PTX_JIT") != NULL; /* then the driver takes no cubin: CUDA C++ Programming Guide */
    while (at < end && have(v, at, 32)) {
        uint64_t kind = number(v, at, 2), head = number(v, at + 4, 4), payload = number(v, at + 8, 8);
        uint64_t made = number(v, at + 28, 4), bytes = payload;
        if (head < 32 || payload > end - at || head > end - at - payload || !have(v, at, head))
            break;
        struct view inner = {.at = v->at + at + head, .length = payload};
        if (head >= 64 && number(v, at + 40, 8) & COMPRESSED)
            bytes = number(v, at + 56, 8) > payload ? number(v, at + 56, 8) : payload;
        else if (runs(kind, made, (uint64_t)arch) && (kind == PTX || kind == CUBIN))
            bytes = plain_bytes(&inner);
        uint64_t rank = (kind == CUBIN && !jit ? 1ULL << 32 : 0) + made + 1;
        if ((kind == PTX || kind == CUBIN) && runs(kind, made, (uint64_t)arch) &&
            (rank > best_rank || (rank == best_rank && bytes > best))) {
            best_rank = rank;
            best = bytes;
        }
        largest = bytes > largest ? bytes : largest;
        at += head + payload;
    }
    return best_rank ? best : largest; /* nothing fits: a kind that is not known here (LTO), or the driver will refuse */
}

static uint64_t plain_bytes(struct view *v)
{
    if (have(v, 0, 4) && number(v, 0, 4) == ELF)
        return cubin_bytes(v);
    uint64_t first = skip(v, 0);
    return is(v, first, have(v, first, 8) ? first + 8 : first, ".version") ? ptx_bytes(v) : 0;
}

/* Device bytes of an image in memory, of `length` bytes at most, on a card of `arch` (90: sm_90; 0: not known, and
 * the largest counts). 0: none of the known forms. */
uint64_t gs_image_bytes(const void *image, uint64_t length, int arch)
{
    struct view v = {.at = image, .length = length};
    if (image && have(&v, 0, 16) && number(&v, 0, 4) == WRAPPER)
        v = (struct view){.at = (const uint8_t *)number(&v, 8, 8), .length = UINT64_MAX};
    if (!v.at || !have(&v, 0, 4))
        return 0;
    return number(&v, 0, 4) == FAT ? fat_bytes(&v, arch) : plain_bytes(&v);
}

/* The same for a file; a file that cannot be read is 0 bytes. */
uint64_t gs_image_file_bytes(const char *path, int arch)
{
    int fd = path ? gs_open(path, 0) : -1;
    int64_t length = fd < 0 ? 0 : gs_file_size(fd);
    const void *image = length > 0 ? gs_map((size_t)length, PROT_READ, MAP_PRIVATE, fd) : NULL;
    uint64_t bytes = 0;
    if (fd >= 0)
        gs_close(fd);
    if (!image)
        return 0;
    /* a file holds no addresses: a wrapper in it means nothing */
    if (length >= 4 && *(const uint32_t *)image != WRAPPER)
        bytes = gs_image_bytes(image, (uint64_t)length, arch);
    gs_unmap((void *)image, (size_t)length);
    return bytes;
}
