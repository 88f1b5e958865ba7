/* The runtime: errors, properties and attributes of devices and functions. */
#define _GNU_SOURCE
#include "device.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WARP_THREADS 32
#define BLOCK_THREADS 1024
#define BLOCK_SHARED_BYTES (48 << 10)
#define REGISTERS 65536
#define CONSTANT_BYTES 65536
#define RESERVED_SHARED_BYTES 1024
#define MAX_PITCH 0x7fffffff
#define MAX_GRID_X 0x7fffffff
#define MAX_GRID 65535
#define COPY_ENGINES 3
#define TEXTURE_ALIGNMENT 512
#define TEXTURE_PITCH_ALIGNMENT 32
#define MEMORY_CLOCK_KHZ 1593000

static _Thread_local int last_error;

int runtime_error(int status) {
    last_error = status;
    return status;
}

API int cudaGetLastError(void) {
    int status = last_error;
    last_error = OK;
    return status;
}

API int cudaPeekAtLastError(void) { return last_error; }

/* cudaDeviceProp as CUDA 12 and CUDA 13 lay it out: `old` surrounds what 13 has dropped. */
#define DEVICE_PROPERTIES(tag, old)                                                              \
    typedef struct {                                                                             \
        char name[256];                                                                          \
        unsigned char uuid[16];                                                                  \
        char luid[8];                                                                            \
        unsigned luid_mask;                                                                      \
        size_t total_bytes, shared_block;                                                        \
        int registers_block, warp;                                                               \
        size_t pitch;                                                                            \
        int threads_block, block_dims[3], grid_dims[3];                                          \
        old(int clock_khz;) size_t constants;                                                    \
        int major, minor;                                                                        \
        size_t texture_alignment, texture_pitch_alignment;                                       \
        old(int overlap;) int multiprocessors;                                                   \
        old(int timeout;) int integrated, maps_host;                                             \
        old(int compute_mode;) int texture_1d, texture_1d_mipmap;                                \
        old(int texture_1d_linear;) int textures_and_surfaces[37];                               \
        size_t surface_alignment;                                                                \
        int concurrent_kernels, ecc, bus, bus_device, bus_domain, tcc, copy_engines, unified;    \
        old(int memory_clock_khz;) int bus_bits, l2, l2_persisting, threads_multiprocessor;      \
        int stream_priorities, global_l1, local_l1;                                              \
        size_t shared_multiprocessor;                                                            \
        int registers_multiprocessor, managed, multi_gpu_board, board_group, host_atomics;       \
        old(int double_ratio;) int pageable_access, concurrent_managed, preemption;              \
        int registered_pointer, cooperative;                                                     \
        old(int cooperative_multi;) size_t shared_block_optin;                                   \
        int host_page_tables, direct_managed, blocks_multiprocessor, access_window;              \
        size_t shared_reserved;                                                                  \
        int host_register, sparse_arrays, register_read_only, timeline, pools, rdma;             \
        int rdma_flush, rdma_order, pool_handles, deferred_arrays, ipc_event, cluster_launch;    \
        int function_pointers, others[63];                                                       \
    } tag;                                                                                       \
    static int tag##_fill(tag *p, int device) {                                                  \
        if (!board_has(device)) return runtime_error(INVALID_DEVICE);                            \
        memset(p, 0, sizeof *p);                                                                 \
        memcpy(p->name, board.name, sizeof p->name);                                             \
        board_uuid(p->uuid, board_physical(device));                                             \
        p->total_bytes = board.total_bytes;                                                      \
        p->shared_block = BLOCK_SHARED_BYTES;                                                    \
        p->registers_block = p->registers_multiprocessor = REGISTERS;                            \
        p->warp = WARP_THREADS;                                                                  \
        p->pitch = MAX_PITCH;                                                                    \
        p->threads_block = p->block_dims[0] = p->block_dims[1] = BLOCK_THREADS;                  \
        p->block_dims[2] = 64;                                                                   \
        p->grid_dims[0] = MAX_GRID_X;                                                            \
        p->grid_dims[1] = p->grid_dims[2] = MAX_GRID;                                            \
        old(p->clock_khz = board.clock_mhz * 1000;)                                              \
        old(p->memory_clock_khz = MEMORY_CLOCK_KHZ;)                                             \
        p->constants = CONSTANT_BYTES;                                                           \
        p->major = board.major;                                                                  \
        p->minor = board.minor;                                                                  \
        p->texture_alignment = p->surface_alignment = TEXTURE_ALIGNMENT;                         \
        p->texture_pitch_alignment = TEXTURE_PITCH_ALIGNMENT;                                    \
        p->multiprocessors = board.multiprocessors;                                              \
        p->maps_host = p->concurrent_kernels = p->ecc = p->unified = p->managed = 1;             \
        p->bus = board_physical(device) + 1;                                                     \
        p->copy_engines = COPY_ENGINES;                                                          \
        p->bus_bits = board.bus_bits;                                                            \
        p->l2 = board.l2_bytes;                                                                  \
        p->threads_multiprocessor = board.threads_multiprocessor;                                \
        p->stream_priorities = p->global_l1 = p->local_l1 = p->concurrent_managed = 1;           \
        p->shared_multiprocessor = (size_t)board.shared_multiprocessor_bytes;                    \
        p->preemption = p->registered_pointer = p->cooperative = 1;                              \
        p->shared_block_optin = (size_t)board.shared_block_bytes;                                \
        p->blocks_multiprocessor = BLOCKS_MULTIPROCESSOR;                                        \
        p->shared_reserved = RESERVED_SHARED_BYTES;                                              \
        p->host_register = p->pools = 1;                                                         \
        p->cluster_launch = board.major >= 9;                                                    \
        return OK;                                                                               \
    }
#define KEEP(...) __VA_ARGS__
#define DROP(...)
DEVICE_PROPERTIES(properties_12, KEEP)
DEVICE_PROPERTIES(properties_13, DROP)

API int cudaGetDeviceProperties(void *properties, int device) {
    return properties_13_fill(properties, device);
}

/* CUDA 12's name of it. */
API int cudaGetDeviceProperties_v2(void *properties, int device) {
    return properties_12_fill(properties, device);
}

/* cudaDeviceAttr and CUdevice_attribute have the same numbers. */
enum {
    ATTRIBUTE_BLOCK_THREADS = 1,
    ATTRIBUTE_BLOCK_X = 2,
    ATTRIBUTE_BLOCK_Y = 3,
    ATTRIBUTE_BLOCK_Z = 4,
    ATTRIBUTE_GRID_X = 5,
    ATTRIBUTE_GRID_Y = 6,
    ATTRIBUTE_GRID_Z = 7,
    ATTRIBUTE_BLOCK_SHARED = 8,
    ATTRIBUTE_CONSTANTS = 9,
    ATTRIBUTE_WARP = 10,
    ATTRIBUTE_PITCH = 11,
    ATTRIBUTE_BLOCK_REGISTERS = 12,
    ATTRIBUTE_CLOCK = 13,
    ATTRIBUTE_TEXTURE_ALIGNMENT = 14,
    ATTRIBUTE_MULTIPROCESSORS = 16,
    ATTRIBUTE_MAPS_HOST = 19,
    ATTRIBUTE_CONCURRENT_KERNELS = 31,
    ATTRIBUTE_ECC = 32,
    ATTRIBUTE_BUS = 33,
    ATTRIBUTE_MEMORY_CLOCK = 36,
    ATTRIBUTE_BUS_BITS = 37,
    ATTRIBUTE_L2 = 38,
    ATTRIBUTE_THREADS = 39,
    ATTRIBUTE_COPY_ENGINES = 40,
    ATTRIBUTE_UNIFIED = 41,
    ATTRIBUTE_MAJOR = 75,
    ATTRIBUTE_MINOR = 76,
    ATTRIBUTE_STREAM_PRIORITIES = 78,
    ATTRIBUTE_GLOBAL_L1 = 79,
    ATTRIBUTE_LOCAL_L1 = 80,
    ATTRIBUTE_SHARED = 81,
    ATTRIBUTE_REGISTERS = 82,
    ATTRIBUTE_MANAGED = 83,
    ATTRIBUTE_CONCURRENT_MANAGED = 89,
    ATTRIBUTE_PREEMPTION = 90,
    ATTRIBUTE_REGISTERED_POINTER = 91,
    ATTRIBUTE_COOPERATIVE = 95,
    ATTRIBUTE_SHARED_OPTIN = 97,
    ATTRIBUTE_HOST_REGISTER = 99,
    ATTRIBUTE_VIRTUAL_MEMORY = 102, /* of the driver only */
    ATTRIBUTE_BLOCKS = 106,
    ATTRIBUTE_SHARED_RESERVED = 111,
    ATTRIBUTE_POOLS = 115,
    ATTRIBUTE_CLUSTERS = 120,
};

int runtime_attribute(int attribute, int device) {
    switch (attribute) {
    case ATTRIBUTE_BLOCK_THREADS:
    case ATTRIBUTE_BLOCK_X:
    case ATTRIBUTE_BLOCK_Y: return BLOCK_THREADS;
    case ATTRIBUTE_BLOCK_Z: return 64;
    case ATTRIBUTE_GRID_X: return MAX_GRID_X;
    case ATTRIBUTE_GRID_Y:
    case ATTRIBUTE_GRID_Z: return MAX_GRID;
    case ATTRIBUTE_BLOCK_SHARED: return BLOCK_SHARED_BYTES;
    case ATTRIBUTE_CONSTANTS: return CONSTANT_BYTES;
    case ATTRIBUTE_WARP: return WARP_THREADS;
    case ATTRIBUTE_PITCH: return MAX_PITCH;
    case ATTRIBUTE_BLOCK_REGISTERS:
    case ATTRIBUTE_REGISTERS: return REGISTERS;
    case ATTRIBUTE_CLOCK: return board.clock_mhz * 1000;
    case ATTRIBUTE_MEMORY_CLOCK: return MEMORY_CLOCK_KHZ;
    case ATTRIBUTE_TEXTURE_ALIGNMENT: return TEXTURE_ALIGNMENT;
    case ATTRIBUTE_MULTIPROCESSORS: return board.multiprocessors;
    case ATTRIBUTE_BUS: return board_has(device) ? board_physical(device) + 1 : 0;
    case ATTRIBUTE_BUS_BITS: return board.bus_bits;
    case ATTRIBUTE_L2: return board.l2_bytes;
    case ATTRIBUTE_THREADS: return board.threads_multiprocessor;
    case ATTRIBUTE_COPY_ENGINES: return COPY_ENGINES;
    case ATTRIBUTE_MAJOR: return board.major;
    case ATTRIBUTE_MINOR: return board.minor;
    case ATTRIBUTE_SHARED: return board.shared_multiprocessor_bytes;
    case ATTRIBUTE_SHARED_OPTIN: return board.shared_block_bytes;
    case ATTRIBUTE_SHARED_RESERVED: return RESERVED_SHARED_BYTES;
    case ATTRIBUTE_BLOCKS: return BLOCKS_MULTIPROCESSOR;
    case ATTRIBUTE_CLUSTERS: return board.major >= 9;
    case ATTRIBUTE_MAPS_HOST:
    case ATTRIBUTE_CONCURRENT_KERNELS:
    case ATTRIBUTE_ECC:
    case ATTRIBUTE_UNIFIED:
    case ATTRIBUTE_STREAM_PRIORITIES:
    case ATTRIBUTE_GLOBAL_L1:
    case ATTRIBUTE_LOCAL_L1:
    case ATTRIBUTE_MANAGED:
    case ATTRIBUTE_CONCURRENT_MANAGED:
    case ATTRIBUTE_PREEMPTION:
    case ATTRIBUTE_REGISTERED_POINTER:
    case ATTRIBUTE_COOPERATIVE:
    case ATTRIBUTE_HOST_REGISTER:
    case ATTRIBUTE_VIRTUAL_MEMORY:
    case ATTRIBUTE_POOLS: return 1;
    default: return 0;
    }
}

API int cudaDeviceGetAttribute(int *value, int attribute, int device) {
    if (!board_has(device)) return runtime_error(INVALID_DEVICE);
    *value = runtime_attribute(attribute, device);
    return OK;
}

API int cudaGetDeviceCount(int *count) {
    *count = board_visible();
    return *count ? OK : runtime_error(NO_DEVICE);
}

API int cudaGetDevice(int *device) {
    *device = board_current();
    return OK;
}

API int cudaSetDevice(int device) {
    if (!board_has(device)) return runtime_error(INVALID_DEVICE);
    board_select(device);
    board_open_context(device); /* since CUDA 12 */
    return OK;
}

API int cudaDeviceGetPCIBusId(char *text, int room, int device) {
    if (!board_has(device)) return runtime_error(INVALID_DEVICE);
    board_bus(text, (size_t)room, board_physical(device));
    return OK;
}

API int cudaDeviceGetByPCIBusId(int *device, const char *bus) {
    *device = board_ordinal(board_from_bus(bus));
    return *device >= 0 ? OK : runtime_error(INVALID_DEVICE);
}

API int cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
    if (least) *least = 0;
    if (greatest) *greatest = -5;
    return OK;
}

API int cudaDeviceCanAccessPeer(int *answer, int device, int peer) {
    *answer = device != peer;
    return OK;
}

API int cudaDeviceGetGraphMemAttribute(int device UNUSED, int attribute UNUSED, uint64_t *value) {
    *value = 0;
    return OK;
}

API int cudaDeviceGetLimit(size_t *value, int limit UNUSED) {
    *value = 1024;
    return OK;
}

API int cudaDriverGetVersion(int *version) {
    *version = board.cuda_version;
    return OK;
}

/* cudaFuncAttributes; reserved members follow. */
typedef struct {
    size_t shared_bytes, constant_bytes, local_bytes;
    int threads, registers, ptx_version, binary_version, cache_mode, dynamic_shared_bytes, carveout;
} function_attributes;

/* Wheels of torch have code for these; a device runs the newest that it can. CUB refuses others. */
static int code_version(void) {
    static const int versions[] = {120, 100, 90, 86, 80, 75, 70, 60};
    for (size_t i = 0; i < sizeof versions / sizeof *versions; i++)
        if (versions[i] <= board.major * 10 + board.minor) return versions[i];
    return board.major * 10 + board.minor;
}

API int cudaFuncGetAttributes(function_attributes *attributes, const void *function UNUSED) {
    *attributes = (function_attributes){
        .threads = BLOCK_THREADS,
        .registers = 32,
        .ptx_version = code_version(),
        .binary_version = code_version(),
        .dynamic_shared_bytes = BLOCK_SHARED_BYTES,
        .carveout = -1,
    };
    return OK;
}
