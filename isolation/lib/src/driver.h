/* SPDX-License-Identifier: Apache-2.0 */
/* Finding the real libcuda.so.1 by path, where our own object answers to that name. */
#ifndef GS_DRIVER_H
#define GS_DRIVER_H

int gs_driver_load(void);

#endif
