/* SPDX-License-Identifier: Apache-2.0 */
/* Loaded objects, read from memory: finds functions without asking the dynamic linker by name, so
 * neither dlvsym nor a symbol version of dlsym is needed.
 */
#ifndef GS_ELF_H
#define GS_ELF_H

#include <stdint.h>

void *gs_elf_libc(const char *name);
void *gs_elf_next(const char *name);
void *gs_elf_absent(void);
void *gs_elf_in(const char *prefix, const char *name);
int gs_elf_within(const char *prefix, const void *address);
void gs_elf_pin(const void *address);
int gs_elf_redirect(const char *prefix, const char *(*name)(uint32_t), void *(*instead)(uint32_t, void *));
int gs_elf_ours(const void *address);
const char *gs_elf_our_path(void);

#endif
