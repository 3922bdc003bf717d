/* SPDX-License-Identifier: Apache-2.0 */
/* The part of the CUDA driver API that the library wraps or calls, written from the documented
 * names and numbers (CUDA Driver API reference manual 13.x; handles are opaque pointers there).
 */
#ifndef GS_CUDA_SUBSET_H
#define GS_CUDA_SUBSET_H

#include <stddef.h>
#include <stdint.h>

typedef int CUresult;
typedef int CUdevice;
typedef uint64_t CUdeviceptr;
typedef uint64_t CUmemHandle; /* CUmemGenericAllocationHandle */
typedef struct gs_opaque *CUcontext, *CUstream, *CUevent, *CUfunction, *CUmodule, *CUlibrary, *CUarray, *CUpool,
    *CUgraph, *CUgraphExec, *CUgraphNode, *CUmipmap;

enum {
    CUDA_SUCCESS = 0,
    CUDA_ERROR_INVALID_VALUE = 1,
    CUDA_ERROR_OUT_OF_MEMORY = 2,
    CUDA_ERROR_STUB_LIBRARY = 34,
    CUDA_ERROR_NO_DEVICE = 100,
    CUDA_ERROR_NOT_FOUND = 500,
    CUDA_ERROR_NOT_READY = 600,
    CUDA_ERROR_NOT_SUPPORTED = 801,
    CUDA_ERROR_STREAM_CAPTURE_INVALIDATED = 901,
    CUDA_ERROR_STREAM_CAPTURE_UNJOINED = 904
};

enum { CU_LOCATION_DEVICE = 1, CU_LOCATION_HOST = 2, CU_LOCATION_HOST_CURRENT = 4 }; /* CUmemLocationType; 3: a node */
enum { CU_ALLOCATION_MANAGED = 2 };                          /* CUmemAllocationType, since CUDA 13.0 */
enum { CU_POOL_RESERVED_CURRENT = 5, CU_POOL_USED_CURRENT = 7 }; /* CUmemPool_attribute */
enum { CU_GRAPH_USED = 0, CU_GRAPH_RESERVED = 2 };               /* CUgraphMem_attribute */
enum { CU_NODE_KERNEL = 0, CU_NODE_CHILD = 4, CU_NODE_ALLOC = 10, CU_NODE_FREE = 11 }; /* CUgraphNodeType */
enum { /* CUlimit */
    CU_LIMIT_STACK,
    CU_LIMIT_PRINTF,
    CU_LIMIT_MALLOC_HEAP,
    CU_LIMIT_SYNC_DEPTH,     /* levels of cudaDeviceSynchronize() in kernels; devices before 9.0 */
    CU_LIMIT_PENDING_LAUNCH, /* launches by kernels that may wait */
    CU_LIMITS_OF_MEMORY
};
enum { CU_DEVICE_UNITS = 16, CU_DEVICE_THREADS = 39 }; /* CUdevice_attribute: multiprocessors, threads of each */
enum { CU_ARRAY_LAYERED = 1, CU_ARRAY_CUBEMAP = 4, CU_ARRAY_SPARSE = 0x40, CU_ARRAY_DEFERRED = 0x80 };
enum { CU_PROC_PER_THREAD = 2 }; /* CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM */
enum { CU_PROC_NOT_FOUND = 1 };  /* CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND */
#define CU_STREAM_PER_THREAD ((CUstream)2)

struct cu_uuid { uint8_t bytes[16]; };
struct cu_location { int32_t type, id; };
struct cu_mem_prop { int32_t type, handle_types; struct cu_location location; void *win32; uint8_t flags[8]; };
struct cu_pool_props {
    int32_t type, handle_types;
    struct cu_location location;
    void *win32;
    size_t max;
    uint8_t rest[56];
};
struct cu_alloc_node { struct cu_pool_props pool; const void *access; size_t access_count, bytes; CUdeviceptr at; };
struct cu_array { size_t width, height; int32_t format; uint32_t channels; };
struct cu_array3d { size_t width, height, depth; int32_t format; uint32_t channels, flags; };
struct cu_array_need { size_t bytes, alignment; uint32_t rest[4]; }; /* CUDA_ARRAY_MEMORY_REQUIREMENTS */
struct cu_launch_config { uint32_t grid[3], block[3], shared; CUstream stream; void *attributes; uint32_t count; };
struct cu_launch_params {
    CUfunction function;
    uint32_t grid[3], block[3], shared;
    CUstream stream;
    void **parameters;
};
struct cu_ipc_handle { uint8_t bytes[64]; };

/* CUDA_KERNEL_NODE_PARAMS_v2; the first form ends before `kernel`. */
struct cu_kernel_node {
    CUfunction function;
    uint32_t grid[3], block[3], shared;
    void **parameters, **extra;
    CUfunction kernel;
    CUcontext context;
};
struct cu_node_params { int32_t type, reserved[3]; struct cu_kernel_node kernel; }; /* CUgraphNodeParams, its begin */

#define GS_CU(name, ...) extern CUresult name(__VA_ARGS__)
GS_CU(cuInit, unsigned);
GS_CU(cuGetProcAddress, const char *, void **, int, uint64_t);
GS_CU(cuGetProcAddress_v2, const char *, void **, int, uint64_t, int *);
GS_CU(cuGetExportTable, const void **, const void *);
GS_CU(cuDeviceGetUuid, struct cu_uuid *, CUdevice);
GS_CU(cuDeviceGetUuid_v2, struct cu_uuid *, CUdevice);
GS_CU(cuDeviceGetAttribute, int *, int, CUdevice);
GS_CU(cuDeviceGetCount, int *);
GS_CU(cuDeviceTotalMem, unsigned *, CUdevice);
GS_CU(cuDeviceTotalMem_v2, size_t *, CUdevice);
GS_CU(cuDeviceGetDefaultMemPool, CUpool *, CUdevice);
GS_CU(cuDeviceGetMemPool, CUpool *, CUdevice);
GS_CU(cuMemGetDefaultMemPool, CUpool *, const struct cu_location *, int);
GS_CU(cuMemGetMemPool, CUpool *, const struct cu_location *, int);
GS_CU(cuDeviceGraphMemTrim, CUdevice);
GS_CU(cuDeviceGetGraphMemAttribute, CUdevice, int, void *);
GS_CU(cuCtxGetDevice, CUdevice *);
GS_CU(cuCtxGetCurrent, CUcontext *);
GS_CU(cuCtxCreate, CUcontext *, unsigned, CUdevice);
GS_CU(cuCtxCreate_v2, CUcontext *, unsigned, CUdevice);
GS_CU(cuCtxCreate_v3, CUcontext *, void *, int, unsigned, CUdevice);
GS_CU(cuCtxCreate_v4, CUcontext *, void *, unsigned, CUdevice);
GS_CU(cuCtxDestroy, CUcontext);
GS_CU(cuCtxDestroy_v2, CUcontext);
GS_CU(cuCtxPushCurrent_v2, CUcontext);
GS_CU(cuCtxPopCurrent_v2, CUcontext *);
GS_CU(cuCtxSetLimit, int, size_t);
GS_CU(cuCtxGetLimit, size_t *, int);
GS_CU(cuCtxSynchronize, void);
GS_CU(cuCtxSynchronize_v2, CUcontext);
GS_CU(cuGreenCtxCreate, CUcontext *, void *, CUdevice, unsigned);
GS_CU(cuDevicePrimaryCtxRetain, CUcontext *, CUdevice);
GS_CU(cuDevicePrimaryCtxRelease, CUdevice);
GS_CU(cuDevicePrimaryCtxRelease_v2, CUdevice);
GS_CU(cuDevicePrimaryCtxReset, CUdevice);
GS_CU(cuDevicePrimaryCtxReset_v2, CUdevice);
GS_CU(cuDevicePrimaryCtxGetState, CUdevice, unsigned *, int *);
GS_CU(cuModuleLoad, CUmodule *, const char *);
GS_CU(cuModuleLoadData, CUmodule *, const void *);
GS_CU(cuModuleLoadDataEx, CUmodule *, const void *, unsigned, void *, void **);
GS_CU(cuModuleLoadFatBinary, CUmodule *, const void *);
GS_CU(cuModuleUnload, CUmodule);
GS_CU(cuModuleGetLoadingMode, int *);
GS_CU(cuLibraryLoadData, CUlibrary *, const void *, void *, void **, unsigned, void *, void **, unsigned);
GS_CU(cuLibraryLoadFromFile, CUlibrary *, const char *, void *, void **, unsigned, void *, void **, unsigned);
GS_CU(cuLibraryUnload, CUlibrary);
GS_CU(cuLibraryGetModule, CUmodule *, CUlibrary);
GS_CU(cuLibraryGetGlobal, CUdeviceptr *, size_t *, CUlibrary, const char *);
GS_CU(cuLibraryGetManaged, CUdeviceptr *, size_t *, CUlibrary, const char *);
GS_CU(cuLibraryGetKernel, CUfunction *, CUlibrary, const char *);
GS_CU(cuLibraryGetKernelCount, unsigned *, CUlibrary);
GS_CU(cuLibraryEnumerateKernels, CUfunction *, unsigned, CUlibrary);
GS_CU(cuKernelGetFunction, CUfunction *, CUfunction);
GS_CU(cuMemGetInfo, unsigned *, unsigned *);
GS_CU(cuMemGetInfo_v2, size_t *, size_t *);
GS_CU(cuMemAlloc, uint32_t *, unsigned);
GS_CU(cuMemAlloc_v2, CUdeviceptr *, size_t);
GS_CU(cuMemAllocPitch, uint32_t *, unsigned *, unsigned, unsigned, unsigned);
GS_CU(cuMemAllocPitch_v2, CUdeviceptr *, size_t *, size_t, size_t, unsigned);
GS_CU(cuMemAllocManaged, CUdeviceptr *, size_t, unsigned);
GS_CU(cuMemFree, uint32_t);
GS_CU(cuMemFree_v2, CUdeviceptr);
GS_CU(cuArrayCreate, CUarray *, const void *);
GS_CU(cuArrayCreate_v2, CUarray *, const struct cu_array *);
GS_CU(cuArray3DCreate, CUarray *, const void *);
GS_CU(cuArray3DCreate_v2, CUarray *, const struct cu_array3d *);
GS_CU(cuArrayDestroy, CUarray);
GS_CU(cuArrayGetMemoryRequirements, struct cu_array_need *, CUarray, CUdevice);
GS_CU(cuMipmappedArrayGetMemoryRequirements, struct cu_array_need *, CUmipmap, CUdevice);
GS_CU(cuMipmappedArrayCreate, CUmipmap *, const struct cu_array3d *, unsigned);
GS_CU(cuMipmappedArrayDestroy, CUmipmap);
GS_CU(cuMemAllocAsync, CUdeviceptr *, size_t, CUstream);
GS_CU(cuMemAllocAsync_ptsz, CUdeviceptr *, size_t, CUstream);
GS_CU(cuMemAllocFromPoolAsync, CUdeviceptr *, size_t, CUpool, CUstream);
GS_CU(cuMemAllocFromPoolAsync_ptsz, CUdeviceptr *, size_t, CUpool, CUstream);
GS_CU(cuMemFreeAsync, CUdeviceptr, CUstream);
GS_CU(cuMemFreeAsync_ptsz, CUdeviceptr, CUstream);
GS_CU(cuMemPoolCreate, CUpool *, const struct cu_pool_props *);
GS_CU(cuMemPoolDestroy, CUpool);
GS_CU(cuMemPoolTrimTo, CUpool, size_t);
GS_CU(cuMemPoolGetAttribute, CUpool, int, void *);
GS_CU(cuMemCreate, CUmemHandle *, size_t, const struct cu_mem_prop *, uint64_t);
GS_CU(cuMemRelease, CUmemHandle);
GS_CU(cuMemMap, CUdeviceptr, size_t, size_t, CUmemHandle, uint64_t);
GS_CU(cuMemUnmap, CUdeviceptr, size_t);
GS_CU(cuMemRetainAllocationHandle, CUmemHandle *, void *);
GS_CU(cuMemImportFromShareableHandle, CUmemHandle *, void *, int);
GS_CU(cuIpcGetMemHandle, struct cu_ipc_handle *, CUdeviceptr);
GS_CU(cuMemExportToShareableHandle, void *, CUmemHandle, int, uint64_t);
GS_CU(cuMemGetAddressRange_v2, CUdeviceptr *, size_t *, CUdeviceptr);
GS_CU(cuIpcOpenMemHandle, CUdeviceptr *, struct cu_ipc_handle, unsigned);
GS_CU(cuIpcOpenMemHandle_v2, CUdeviceptr *, struct cu_ipc_handle, unsigned);
GS_CU(cuIpcCloseMemHandle, CUdeviceptr);
GS_CU(cuStreamSynchronize, CUstream);
GS_CU(cuStreamSynchronize_ptsz, CUstream);
GS_CU(cuStreamIsCapturing, CUstream, int *);
GS_CU(cuStreamIsCapturing_ptsz, CUstream, int *);
GS_CU(cuThreadExchangeStreamCaptureMode, int *);
GS_CU(cuStreamBeginCapture, CUstream);
GS_CU(cuStreamBeginCapture_ptsz, CUstream);
GS_CU(cuStreamBeginCapture_v2, CUstream, int);
GS_CU(cuStreamBeginCapture_v2_ptsz, CUstream, int);
GS_CU(cuStreamBeginCaptureToGraph, CUstream, CUgraph, const CUgraphNode *, const void *, size_t, int);
GS_CU(cuStreamBeginCaptureToGraph_ptsz, CUstream, CUgraph, const CUgraphNode *, const void *, size_t, int);
GS_CU(cuStreamBeginRecaptureToGraph, CUstream, int, CUgraph, void *, void *);
GS_CU(cuStreamBeginCaptureToCig, CUstream, void *);
GS_CU(cuStreamEndCaptureToCig, CUstream);
GS_CU(cuStreamEndCapture, CUstream, CUgraph *);
GS_CU(cuStreamEndCapture_ptsz, CUstream, CUgraph *);
GS_CU(cuEventCreate, CUevent *, unsigned);
GS_CU(cuEventDestroy_v2, CUevent);
GS_CU(cuEventRecord, CUevent, CUstream);
GS_CU(cuEventQuery, CUevent);
GS_CU(cuEventSynchronize, CUevent);
GS_CU(cuEventElapsedTime, float *, CUevent, CUevent);
GS_CU(cuEventElapsedTime_v2, float *, CUevent, CUevent);
GS_CU(cuLaunch, CUfunction);
GS_CU(cuLaunchGrid, CUfunction, int, int);
GS_CU(cuLaunchGridAsync, CUfunction, int, int, CUstream);
#define GS_LAUNCH_ARGS                                                                                        \
    CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void **
GS_CU(cuLaunchKernel, GS_LAUNCH_ARGS, void **);
GS_CU(cuLaunchKernel_ptsz, GS_LAUNCH_ARGS, void **);
GS_CU(cuLaunchKernelEx, const struct cu_launch_config *, CUfunction, void **, void **);
GS_CU(cuLaunchKernelEx_ptsz, const struct cu_launch_config *, CUfunction, void **, void **);
GS_CU(cuLaunchCooperativeKernel, GS_LAUNCH_ARGS);
GS_CU(cuLaunchCooperativeKernel_ptsz, GS_LAUNCH_ARGS);
GS_CU(cuLaunchCooperativeKernelMultiDevice, struct cu_launch_params *, unsigned, unsigned);
GS_CU(cuGraphLaunch, CUgraphExec, CUstream);
GS_CU(cuGraphLaunch_ptsz, CUgraphExec, CUstream);
GS_CU(cuGraphExecDestroy, CUgraphExec);
GS_CU(cuGraphInstantiate, CUgraphExec *, CUgraph, CUgraphNode *, char *, size_t);
GS_CU(cuGraphInstantiate_v2, CUgraphExec *, CUgraph, CUgraphNode *, char *, size_t);
GS_CU(cuGraphInstantiateWithFlags, CUgraphExec *, CUgraph, uint64_t);
GS_CU(cuGraphInstantiateWithParams, CUgraphExec *, CUgraph, void *);
GS_CU(cuGraphInstantiateWithParams_ptsz, CUgraphExec *, CUgraph, void *);
GS_CU(cuGraphUpload, CUgraphExec, CUstream);
GS_CU(cuGraphUpload_ptsz, CUgraphExec, CUstream);
GS_CU(cuGraphGetNodes, CUgraph, CUgraphNode *, size_t *);
GS_CU(cuGraphNodeGetType, CUgraphNode, int *);
GS_CU(cuGraphMemAllocNodeGetParams, CUgraphNode, struct cu_alloc_node *);
GS_CU(cuGraphMemFreeNodeGetParams, CUgraphNode, CUdeviceptr *);
GS_CU(cuGraphChildGraphNodeGetGraph, CUgraphNode, CUgraph *);
GS_CU(cuGraphAddKernelNode, CUgraphNode *, CUgraph, const CUgraphNode *, size_t, const struct cu_kernel_node *);
GS_CU(cuGraphAddKernelNode_v2, CUgraphNode *, CUgraph, const CUgraphNode *, size_t, const struct cu_kernel_node *);
GS_CU(cuGraphKernelNodeSetParams, CUgraphNode, const struct cu_kernel_node *);
GS_CU(cuGraphKernelNodeSetParams_v2, CUgraphNode, const struct cu_kernel_node *);
GS_CU(cuGraphExecKernelNodeSetParams, CUgraphExec, CUgraphNode, const struct cu_kernel_node *);
GS_CU(cuGraphExecKernelNodeSetParams_v2, CUgraphExec, CUgraphNode, const struct cu_kernel_node *);
GS_CU(cuGraphAddNode, CUgraphNode *, CUgraph, const CUgraphNode *, size_t, struct cu_node_params *);
GS_CU(cuGraphAddNode_v2, CUgraphNode *, CUgraph, const CUgraphNode *, const void *, size_t, struct cu_node_params *);
GS_CU(cuGraphAddNode_v3, CUgraphNode *, CUgraph, const CUgraphNode *, const void *, size_t, struct cu_node_params *);
GS_CU(cuGraphNodeSetParams, CUgraphNode, struct cu_node_params *);
GS_CU(cuGraphExecNodeSetParams, CUgraphExec, CUgraphNode, struct cu_node_params *);
GS_CU(cuGraphAddMemAllocNode, CUgraphNode *, CUgraph, const CUgraphNode *, size_t, struct cu_alloc_node *);

#endif
