/* SPDX-License-Identifier: Apache-2.0 */
/* Entry points that do nothing of their own. They are declared without their parameters: no prototype of a real one may
 * stand in a file that uses these. NOT_SUPPORTED is the answer of the library at hand. */
#ifndef SIMGPU_STUBS_H
#define SIMGPU_STUBS_H

/* What no other file implements. */
#define STUB(symbol)                                               \
    int symbol(void) __attribute__((weak, visibility("default"))); \
    int symbol(void)                                               \
    {                                                              \
        return NOT_SUPPORTED;                                      \
    }

#if defined(__x86_64__)
#define STUB_JUMP "jmp "
#define STUB_VIA "@PLT"
#elif defined(__aarch64__)
#define STUB_JUMP "b "
#define STUB_VIA ""
#endif

/* Another name of `base`, whatever its parameters. */
#define STUB_JUMPS_TO(symbol, base)                                                                             \
    __asm__(".text\n.globl " #symbol "\n.type " #symbol ", @function\n" #symbol ":\n\t" STUB_JUMP #base STUB_VIA \
            "\n.size " #symbol ", . - " #symbol "\n");

#endif
