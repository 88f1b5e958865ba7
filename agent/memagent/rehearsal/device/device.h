/* The rehearsal device: what its rooms share.
 *
 * An unmodified CUDA build of torch calls the functions of this library instead of NVIDIA's. They
 * succeed and compute nothing. Device memory is address space, counted against a capacity.
 *
 *   board.c    configuration, devices, and the ledger of bytes per process and device
 *   memory.c   the address arena, cudaMalloc and its relatives, pointers
 *   copies.c   copies and fills
 *   vmm.c      reserved addresses, physical memory, mappings (expandable segments)
 *   runtime.c  properties, attributes, errors
 *   launches.c kernel launches, occupancy
 *   streams.c  streams, events, capture, graphs
 *   driver.c   contexts, memory, entry points of libcuda
 *   modules.c  modules, which Triton loads
 *   nvml.c     libnvidia-ml
 *   blas.c, dnn.c, dnn_graph.c, nccl.c, others.c   the libraries above the runtime
 *
 * No header of NVIDIA's is needed: types are declared here, enumerations are ints.
 */
#ifndef MEMAGENT_REHEARSAL_DEVICE_H
#define MEMAGENT_REHEARSAL_DEVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define API __attribute__((visibility("default")))
#define UNUSED __attribute__((unused))
#define MAX_DEVICES 16
#define PAGE_BYTES ((size_t)2 << 20) /* a page of device memory */
#define BLOCKS_MULTIPROCESSOR 32         /* that one can run at a time */

/* Status codes: the runtime's and the driver's have the same numbers where both have one. */
enum {
    OK = 0,
    INVALID_VALUE = 1,
    OUT_OF_MEMORY = 2,
    NO_DEVICE = 100,
    INVALID_DEVICE = 101,
    INVALID_HANDLE = 400,
    NOT_FOUND = 500,
    NOT_REGISTERED = 713,
    NOT_SUPPORTED = 801,
    CAPTURE_UNSUPPORTED = 900,
};

/* Directions of a copy (cudaMemcpyKind). */
enum { HOST_TO_HOST, HOST_TO_DEVICE, DEVICE_TO_HOST, DEVICE_TO_DEVICE, BY_ADDRESS };

typedef struct {
    char name[256];
    uint64_t total_bytes;   /* what cudaMemGetInfo calls total */
    uint64_t context_bytes; /* taken once by each process on each device */
    uint64_t held_bytes;    /* by somebody else, on each device */
    uint64_t communicator_bytes; /* of NCCL's buffers for each communicator */
    uint64_t copy_limit;    /* longer copies to the device are left out */
    int major, minor;       /* compute capability */
    int multiprocessors;
    int shared_multiprocessor_bytes, shared_block_bytes; /* the latter: at most, by opting in */
    int l2_bytes;
    int threads_multiprocessor;
    int clock_mhz, bus_bits;
    int cuda_version; /* 13000 for 13.0 */
    int count;        /* of devices in the machine, which NVML shows */
    bool falling_addresses;
} board_config;

extern board_config board;

/* One process and what it holds on each physical device. */
typedef struct {
    int pid;
    uint64_t used[MAX_DEVICES];
} ledger_entry;

int board_visible(void); /* how many devices CUDA shows */
int board_physical(int device);
bool board_has(int device);
bool board_has_context(int device);
void board_open_context(int device);
int board_current(void);
void board_select(int device);
bool board_charge(int device, uint64_t size);
void board_release(int device, uint64_t size);
uint64_t board_used(int physical);
unsigned board_processes(int physical, ledger_entry *entries, unsigned room);
void board_uuid(unsigned char uuid[16], int physical);
int board_from_bus(const char *bus);
void board_bus(char *text, size_t room, int physical);
int board_ordinal(int physical);

/* A range of addresses that the device knows. */
typedef struct {
    uintptr_t start;
    size_t size;
    size_t charged;
    int device;
    enum { RANGE_DEVICE, RANGE_PINNED, RANGE_REGISTERED, RANGE_RESERVED } kind;
} memory_range;

bool memory_lookup(const void *address, memory_range *found);
bool memory_is_device(const memory_range *range);
void *memory_reserve(size_t size, int device, bool accessible);
bool memory_forget(const void *address, memory_range *removed);
void memory_copy(void *target, const void *source, size_t size, int kind);
void memory_fill(void *target, int value, size_t size);

/* Return a handle to a zeroed object of at least `size` bytes through `handle`. */
int object_new(void **handle, size_t size);
int runtime_error(int status); /* remember it for cudaGetLastError, and return it */
int runtime_attribute(int attribute, int device);
int runtime_occupancy(int threads);
void *driver_entry(const char *name);

/* A constructor and a destructor of opaque handles. */
#define OPAQUE_BYTES 512
#define CREATES(function) \
    API int function(void **handle) { return object_new(handle, OPAQUE_BYTES); }
#define DESTROYS(function) \
    API int function(void *handle) { \
        free(handle); \
        return OK; \
    }

int cudaMalloc(void **out, size_t size);
int cudaFree(void *address);
int cudaMemcpyAsync(void *target, const void *source, size_t size, int kind, void *stream);

#endif
