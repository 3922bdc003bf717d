/* SPDX-License-Identifier: Apache-2.0 */
/* Every documented NVML entry point exists; what no other file implements is not supported. */
enum { NOT_SUPPORTED = 3 };

#define S(symbol)                                                  \
    int symbol(void) __attribute__((weak, visibility("default"))); \
    int symbol(void)                                               \
    {                                                              \
        return NOT_SUPPORTED;                                      \
    }
#include "names.def"
