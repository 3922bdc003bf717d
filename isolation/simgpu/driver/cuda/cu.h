/* SPDX-License-Identifier: Apache-2.0 */
/* Types and numbers of the CUDA driver API, retyped from its documented names and values
 * (CUDA Driver API reference, release 13); only what this simulator needs. */
#ifndef SIMGPU_CU_H
#define SIMGPU_CU_H

#include <stddef.h>
#include <stdint.h>

#define API __attribute__((visibility("default")))

typedef int CUresult;
typedef int CUdevice;
typedef uint64_t CUdeviceptr;

enum {
    CUDA_SUCCESS = 0,
    CUDA_ERROR_INVALID_VALUE = 1,
    CUDA_ERROR_OUT_OF_MEMORY = 2,
    CUDA_ERROR_NOT_INITIALIZED = 3,
    CUDA_ERROR_NO_DEVICE = 100,
    CUDA_ERROR_INVALID_DEVICE = 101,
    CUDA_ERROR_INVALID_IMAGE = 200,
    CUDA_ERROR_INVALID_CONTEXT = 201,
    CUDA_ERROR_MAP_FAILED = 205,
    CUDA_ERROR_NO_BINARY_FOR_GPU = 209,
    CUDA_ERROR_ECC_UNCORRECTABLE = 214,
    CUDA_ERROR_UNSUPPORTED_LIMIT = 215,
    CUDA_ERROR_PEER_ACCESS_UNSUPPORTED = 217,
    CUDA_ERROR_FILE_NOT_FOUND = 301,
    CUDA_ERROR_OPERATING_SYSTEM = 304,
    CUDA_ERROR_INVALID_HANDLE = 400,
    CUDA_ERROR_ILLEGAL_STATE = 401,
    CUDA_ERROR_NOT_FOUND = 500,
    CUDA_ERROR_NOT_READY = 600,
    CUDA_ERROR_ILLEGAL_ADDRESS = 700,
    CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED = 704,
    CUDA_ERROR_PEER_ACCESS_NOT_ENABLED = 705,
    CUDA_ERROR_CONTEXT_IS_DESTROYED = 709,
    CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED = 712,
    CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED = 713,
    CUDA_ERROR_LAUNCH_FAILED = 719,
    CUDA_ERROR_NOT_PERMITTED = 800,
    CUDA_ERROR_NOT_SUPPORTED = 801,
    CUDA_ERROR_SYSTEM_NOT_READY = 802,
    CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED = 900,
    CUDA_ERROR_STREAM_CAPTURE_INVALIDATED = 901,
    CUDA_ERROR_STREAM_CAPTURE_UNMATCHED = 903,
    CUDA_ERROR_STREAM_CAPTURE_ISOLATION = 905,
    CUDA_ERROR_STREAM_CAPTURE_IMPLICIT = 906,
    CUDA_ERROR_CAPTURED_EVENT = 907,
    CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE = 910,
    CUDA_ERROR_DEVICE_UNAVAILABLE = 46,
    CUDA_ERROR_MPS_CONNECTION_FAILED = 805,
    CUDA_ERROR_MPS_SERVER_NOT_READY = 807,
    CUDA_ERROR_MPS_MAX_CLIENTS_REACHED = 808,
    CUDA_ERROR_UNKNOWN = 999,
};

enum { CU_MEM_LOCATION_NONE, CU_MEM_LOCATION_DEVICE, CU_MEM_LOCATION_HOST, CU_MEM_LOCATION_HOST_NUMA };
enum { CU_MEM_PINNED = 1, CU_MEM_MANAGED = 2 };
enum { CU_ARRAY_SPARSE = 0x40, CU_ARRAY_DEFERRED = 0x80 };
enum { CU_MEM_HANDLE_POSIX_FD = 1 };
enum { CU_MEMORY_HOST = 1, CU_MEMORY_DEVICE = 2, CU_MEMORY_ARRAY = 3, CU_MEMORY_UNIFIED = 4 };
enum {
    CU_LIMIT_STACK,
    CU_LIMIT_PRINTF,
    CU_LIMIT_HEAP,
    CU_LIMIT_SYNC_DEPTH,
    CU_LIMIT_PENDING_LAUNCH,
    CU_LIMITS_OF_MEMORY,
    CU_LIMITS = 11
};
enum { CU_STREAM_NON_BLOCKING = 1 };
enum { CU_EVENT_DISABLE_TIMING = 2 };
enum { CU_STREAM_LEGACY_HANDLE = 1, CU_STREAM_PER_THREAD_HANDLE = 2 };

enum cu_node {
    CU_NODE_KERNEL,
    CU_NODE_MEMCPY,
    CU_NODE_MEMSET,
    CU_NODE_HOST,
    CU_NODE_GRAPH,
    CU_NODE_EMPTY,
    CU_NODE_WAIT_EVENT,
    CU_NODE_EVENT_RECORD,
    CU_NODE_MEM_ALLOC = 10,
    CU_NODE_MEM_FREE = 11,
};

typedef struct {
    char bytes[16];
} CUuuid;

struct cu_location {
    int type, id;
};

struct cu_allocation { /* CUmemAllocationProp */
    int type, handle_types;
    struct cu_location location;
    void *win32;
    uint8_t compression, rdma;
    uint16_t usage;
    uint8_t reserved[4];
};

struct cu_pool_props { /* CUmemPoolProps */
    int type, handle_types;
    struct cu_location location;
    void *win32;
    size_t max_bytes;
    uint16_t usage;
    uint8_t rdma, reserved[53];
};

struct cu_access { /* CUmemAccessDesc */
    struct cu_location location;
    int flags;
};

struct cu_launch { /* CUlaunchConfig */
    unsigned grid[3], block[3], shared_bytes;
    void *stream;
    void *attributes;
    unsigned attribute_count;
};

struct cu_kernel_node { /* CUDA_KERNEL_NODE_PARAMS_v2 */
    void *function;
    unsigned grid[3], block[3], shared_bytes;
    void **params, **extra;
    void *kernel, *context;
};

struct cu_alloc_node { /* CUDA_MEM_ALLOC_NODE_PARAMS */
    struct cu_pool_props pool;
    const struct cu_access *access;
    size_t access_count, bytes;
    CUdeviceptr pointer;
};

struct cu_memset_node { /* CUDA_MEMSET_NODE_PARAMS */
    CUdeviceptr to;
    size_t pitch;
    unsigned value, element;
    size_t width, height;
};

typedef void (*cu_host_fn)(void *);

struct cu_host_node { /* CUDA_HOST_NODE_PARAMS */
    cu_host_fn fn;
    void *data;
};

struct cu_end2 { /* one side of CUDA_MEMCPY2D */
    size_t x, y;
    int type;
    void *host;
    CUdeviceptr device;
    void *array;
    size_t pitch;
};

struct cu_copy2 { /* CUDA_MEMCPY2D */
    struct cu_end2 from, to;
    size_t width, height;
};

struct cu_end3 { /* one side of CUDA_MEMCPY3D; `context` is reserved outside of the PEER form */
    size_t x, y, z, lod;
    int type;
    void *host;
    CUdeviceptr device;
    void *array;
    void *context;
    size_t pitch, height;
};

struct cu_copy3 { /* CUDA_MEMCPY3D */
    struct cu_end3 from, to;
    size_t width, height, depth;
};

struct cu_array2 { /* CUDA_ARRAY_DESCRIPTOR */
    size_t width, height;
    int format;
    unsigned channels;
};

struct cu_array3 { /* CUDA_ARRAY3D_DESCRIPTOR */
    size_t width, height, depth;
    int format;
    unsigned channels, flags;
};

#endif
