/* SPDX-License-Identifier: Apache-2.0 */
/* Every documented entry point exists: what no other file implements answers NOT_SUPPORTED, and the
 * variants for a default stream per thread lead to the plain functions (whose NULL stream then is the
 * legacy one: fewer overlaps than on hardware, never more). */
#include "stubs.h"

enum { NOT_SUPPORTED = 801 };

#define X(name, version, symbol) STUB(symbol)
#define P(symbol, base) STUB_JUMPS_TO(symbol, base)
#include "names.def"
