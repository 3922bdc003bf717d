/* SPDX-License-Identifier: Apache-2.0 */
/* The four functions that gcc may call on its own in a program without libc. */
#include <stddef.h>
#include <stdint.h>

#define PRIVATE __attribute__((visibility("hidden"), used, optimize("no-tree-loop-distribute-patterns")))

PRIVATE void *memcpy(void *restrict to, const void *restrict from, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        ((uint8_t *)to)[i] = ((const uint8_t *)from)[i];
    return to;
}

PRIVATE void *memmove(void *to, const void *from, size_t bytes)
{
    if ((uintptr_t)to <= (uintptr_t)from)
        return memcpy(to, from, bytes);
    for (size_t i = bytes; i-- > 0;)
        ((uint8_t *)to)[i] = ((const uint8_t *)from)[i];
    return to;
}

PRIVATE void *memset(void *to, int value, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        ((uint8_t *)to)[i] = (uint8_t)value;
    return to;
}

PRIVATE int memcmp(const void *a, const void *b, size_t bytes)
{
    const uint8_t *left = a, *right = b;
    for (size_t i = 0; i < bytes; i++)
        if (left[i] != right[i])
            return left[i] < right[i] ? -1 : 1;
    return 0;
}
