/* SPDX-License-Identifier: Apache-2.0 */
/* How much of a fat binary a device loads. A linked program holds a wrapper (magic, version, data) that
 * points at a container (magic, version, header bytes, bytes) of entries: one image each, for one
 * architecture. Only one of them is loaded; what it takes is its size when uncompressed. */
#include "runtime.h"

#include <string.h>

enum { PTX = 1, ELF = 2, COMPRESSED = 0x2000 };
#define WRAPPER 0x466243B1u
#define CONTAINER 0xBA55ED50u

struct wrapper {
    uint32_t magic, version;
    const unsigned char *data;
};

struct container {
    uint32_t magic;
    uint16_t version, header_bytes;
    uint64_t bytes;
};

struct entry {
    uint16_t kind, version;
    uint32_t header_bytes;
    uint64_t bytes;
    uint32_t compressed_bytes, options_offset;
    uint16_t minor, major;
    uint32_t capability; /* 86 is 8.6 */
    uint32_t name_offset, name_bytes;
    uint64_t flags, reserved, uncompressed_bytes;
};

/* Machine code runs on its own major version from its own minor one on, and goes before PTX. */
static int rank(const struct entry *entry, int capability)
{
    int own = (int)entry->capability;
    if (own > capability || (entry->kind == ELF && own / 10 != capability / 10))
        return 0;
    return own + (entry->kind == ELF ? 1000 : 0);
}

/* Bytes that the image for this compute capability (86: 8.6) has; 0 if there is none or no container. */
uint64_t rt_image_bytes(const void *image, int capability)
{
    struct wrapper wrapper;
    struct container container;
    memcpy(&wrapper, image, sizeof wrapper);
    if (wrapper.magic != WRAPPER || !wrapper.data)
        return 0;
    memcpy(&container, wrapper.data, sizeof container);
    if (container.magic != CONTAINER)
        return 0;
    const unsigned char *at = wrapper.data + container.header_bytes, *end = at + container.bytes;
    uint64_t bytes = 0;
    int best = 0;
    while (at + sizeof(struct entry) <= end) {
        struct entry entry;
        memcpy(&entry, at, sizeof entry);
        if (!entry.header_bytes || entry.bytes > (uint64_t)(end - at))
            break;
        int now = entry.kind == PTX || entry.kind == ELF ? rank(&entry, capability) : 0;
        if (now > best) {
            best = now;
            bytes = entry.flags & COMPRESSED ? entry.uncompressed_bytes : entry.bytes;
        }
        at += entry.header_bytes + entry.bytes;
    }
    return bytes;
}
