/* SPDX-License-Identifier: Apache-2.0 */
/* What a module image takes of a card once it is loaded there: code, constants and `__device__` variables. */
#ifndef GS_IMAGE_H
#define GS_IMAGE_H

#include <stdint.h>

uint64_t gs_image_bytes(const void *image, uint64_t length, int arch);
uint64_t gs_image_file_bytes(const char *path, int arch);

#endif
