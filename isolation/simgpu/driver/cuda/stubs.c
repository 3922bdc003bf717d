/* SPDX-License-Identifier: Apache-2.0 */
/* Every documented entry point exists: what no other file implements answers NOT_SUPPORTED, and the
 * variants for a default stream per thread lead to the plain functions (whose NULL stream then is the
 * legacy one: fewer overlaps than on hardware, never more). */
enum { NOT_SUPPORTED = 801 };

#define X(name, version, symbol)                                   \
    int symbol(void) __attribute__((weak, visibility("default"))); \
    int symbol(void)                                               \
    {                                                              \
        return NOT_SUPPORTED;                                      \
    }
#include "names.def"

#if defined(__x86_64__)
#define JUMP "jmp "
#define VIA "@PLT"
#elif defined(__aarch64__)
#define JUMP "b "
#define VIA ""
#endif

#define P(symbol, base)                                                                               \
    __asm__(".text\n.globl " #symbol "\n.type " #symbol ", @function\n" #symbol ":\n\t" JUMP #base VIA \
            "\n.size " #symbol ", . - " #symbol "\n");
#include "names.def"
