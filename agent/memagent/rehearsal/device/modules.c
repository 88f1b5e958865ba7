/* Modules of the driver and their functions. */
#define _GNU_SOURCE
#include "device.h"

#include <stdlib.h>
#include <string.h>

/* Modules: Triton and torch's own compiler load here what they have built. */
static char constants[1 << 16];

API int cuModuleLoadData(void **module, const void *image UNUSED) {
    board_open_context(board_current());
    return object_new(module, OPAQUE_BYTES);
}
API int cuModuleLoadDataEx(void **module, const void *image) {
    return cuModuleLoadData(module, image);
}
API int cuModuleLoad(void **module, const char *path UNUSED) {
    return cuModuleLoadData(module, NULL);
}
DESTROYS(cuModuleUnload)
API int cuModuleGetFunction(void **function, void *module UNUSED, const char *name UNUSED) {
    return object_new(function, OPAQUE_BYTES);
}
API int cuModuleGetGlobal_v2(void **address, size_t *size) {
    if (address) *address = constants;
    if (size) *size = 64;
    return OK;
}
API int cudaGetSymbolAddress(void **address, const void *symbol UNUSED) {
    *address = constants;
    return OK;
}
API int cudaLibraryLoadData(void **library) { return object_new(library, OPAQUE_BYTES); }
API int cudaLibraryGetKernel(void **kernel) { return object_new(kernel, OPAQUE_BYTES); }
API int cuLinkCreate_v2(unsigned count UNUSED, void *options UNUSED, void **values UNUSED,
                        void **state) {
    return object_new(state, OPAQUE_BYTES);
}
API int cuLinkAddData_v2(void) { return OK; }
DESTROYS(cuLinkDestroy)
API int cuLinkComplete(void *state UNUSED, void **image, size_t *size) {
    *image = constants;
    *size = 64;
    return OK;
}

API int cuFuncGetAttribute(int *value, int attribute, void *function UNUSED) {
    *value = attribute == 0 ? 1024 : attribute == 4 ? 32 : 0; /* threads of a block; registers */
    return OK;
}
API int cuFuncSetAttribute(void) { return OK; }
API int cuFuncSetCacheConfig(void) { return OK; }
API int cuLaunchKernel(void) { return OK; }
API int cuLaunchKernelEx(void) { return OK; }
API int cuLaunchCooperativeKernel(void) { return OK; }

API int cuOccupancyMaxActiveBlocksPerMultiprocessor(int *count, void *function UNUSED,
                                                    int threads) {
    *count = runtime_occupancy(threads);
    return OK;
}
API int cuOccupancyMaxActiveClusters(int *count) {
    *count = 8;
    return OK;
}
API int cuTensorMapEncodeTiled(void *map) {
    memset(map, 0, 128);
    return OK;
}
