/* SPDX-License-Identifier: Apache-2.0 */
/* Every documented NVML entry point exists; what no other file implements is not supported. */
#include "../cuda/stubs.h"

enum { NOT_SUPPORTED = 3 };

#define S(symbol) STUB(symbol)
#include "names.def"
