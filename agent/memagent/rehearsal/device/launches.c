/* Kernel launches, which do nothing, and what their authors ask before. */
#define _GNU_SOURCE
#include "device.h"

#include <stdlib.h>

int runtime_occupancy(int threads) {
    int blocks = board.threads_multiprocessor / (threads > 0 ? threads : 1);
    if (blocks > BLOCKS_MULTIPROCESSOR / 2) blocks = BLOCKS_MULTIPROCESSOR / 2;
    return blocks > 0 ? blocks : 1;
}

API int cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *count, const void *function UNUSED,
                                                      int threads) {
    *count = runtime_occupancy(threads);
    return OK;
}

API int cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *count, const void *function,
                                                               int threads) {
    return cudaOccupancyMaxActiveBlocksPerMultiprocessor(count, function, threads);
}

/* Launches: nvcc's code pushes a configuration before it calls the kernel's stub, which pops it. */
typedef struct {
    unsigned x, y, z;
} extent;
typedef struct {
    extent grid, block;
    size_t shared_bytes;
    void *stream;
} configuration;
#define MAX_CONFIGURATIONS 16
static _Thread_local configuration pushed[MAX_CONFIGURATIONS];
static _Thread_local int push_count;

API unsigned __cudaPushCallConfiguration(extent grid, extent block, size_t shared_bytes,
                                         void *stream) {
    if (push_count < MAX_CONFIGURATIONS)
        pushed[push_count++] = (configuration){grid, block, shared_bytes, stream};
    return 0;
}

API int __cudaPopCallConfiguration(extent *grid, extent *block, size_t *shared_bytes,
                                   void **stream) {
    configuration popped = {{1, 1, 1}, {1, 1, 1}, 0, NULL};
    if (push_count) popped = pushed[--push_count];
    *grid = popped.grid;
    *block = popped.block;
    *shared_bytes = popped.shared_bytes;
    *stream = popped.stream;
    return OK;
}

API void **__cudaRegisterFatBinary(const void *binary UNUSED) {
    static void *handle[2];
    return handle;
}

API int __cudaGetKernel(const void **kernel, const void *function) {
    *kernel = function;
    return OK;
}

API char __cudaInitModule(void **handle UNUSED) { return 0; }
API int cudaLaunchKernel(void) { return OK; }
API int __cudaLaunchKernel(void) { return OK; }
API int cudaMemcpyToSymbol(void) { return OK; }
