/* SPDX-License-Identifier: Apache-2.0 */
/* Every documented function exists: what no other file implements answers cudaErrorNotSupported, and the
 * variants for a default stream per thread lead to the plain functions, as in the simulated driver. */
#include "../driver/cuda/stubs.h"

enum { NOT_SUPPORTED = 801 };

#define X(name) STUB(name)
#define P(symbol, base) STUB_JUMPS_TO(symbol, base)
#include "names.def"
