/* The driver: devices, contexts, memory, and the entry points that others look up by name. */
#define _GNU_SOURCE
#include "device.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ENTRY_FOUND 0
#define ENTRY_MISSING 1

static int unknown_entry(void) { return NOT_SUPPORTED; }

/* Return the newest version of a function of this library, or NULL. */
void *driver_entry(const char *name) {
    static void *library;
    if (!library) {
        Dl_info info;
        if (!dladdr((void *)driver_entry, &info)) return NULL;
        library = dlopen(info.dli_fname, RTLD_NOW | RTLD_NOLOAD);
    }
    char versioned[160];
    void *found = NULL;
    for (int version = 4; version >= 2 && !found; version--) {
        snprintf(versioned, sizeof versioned, "%s_v%d", name, version);
        found = dlsym(library, versioned);
    }
    return found ? found : dlsym(library, name);
}

API int cudaGetDriverEntryPointByVersion(const char *name, void **entry, unsigned version UNUSED,
                                         unsigned long long flags UNUSED, int *result) {
    *entry = driver_entry(name);
    if (!*entry) *entry = (void *)unknown_entry; /* torch takes NULL for an old driver */
    if (result) *result = ENTRY_FOUND;
    return OK;
}

API int cudaGetDriverEntryPoint(const char *name, void **entry, unsigned long long flags,
                                int *result) {
    return cudaGetDriverEntryPointByVersion(name, entry, 0, flags, result);
}

API int cuGetProcAddress_v2(const char *name, void **entry, int version UNUSED,
                            unsigned long long flags UNUSED, int *result) {
    *entry = driver_entry(name);
    if (result) *result = *entry ? ENTRY_FOUND : ENTRY_MISSING;
    return *entry ? OK : NOT_FOUND;
}

API int cuGetProcAddress(const char *name, void **entry, int version, unsigned long long flags) {
    return cuGetProcAddress_v2(name, entry, version, flags, NULL);
}

/* NVRTC looks for it wherever it finds a libcuda. */
API int cuGetExportTable(const void **table, const void *id UNUSED) {
    *table = NULL;
    return NOT_FOUND;
}

API int cuInit(unsigned flags UNUSED) { return board_visible() ? OK : NO_DEVICE; }

API int cuDriverGetVersion(int *version) {
    *version = board.cuda_version;
    return OK;
}

API int cuDeviceGetCount(int *count) {
    *count = board_visible();
    return OK;
}

API int cuDeviceGet(int *device, int ordinal) {
    *device = ordinal;
    return board_has(ordinal) ? OK : INVALID_DEVICE;
}

API int cuDeviceGetName(char *name, int room, int device UNUSED) {
    snprintf(name, (size_t)room, "%s", board.name);
    return OK;
}

API int cuDeviceTotalMem_v2(size_t *size, int device UNUSED) {
    *size = board.total_bytes;
    return OK;
}

API int cuDeviceGetAttribute(int *value, int attribute, int device) {
    *value = runtime_attribute(attribute, device);
    return OK;
}

API int cuDeviceGetUuid_v2(unsigned char *uuid, int device) {
    if (!board_has(device)) return INVALID_DEVICE;
    board_uuid(uuid, board_physical(device));
    return OK;
}

API int cuDeviceGetPCIBusId(char *text, int room, int device) {
    if (!board_has(device)) return INVALID_DEVICE;
    board_bus(text, (size_t)room, board_physical(device));
    return OK;
}

API int cuDeviceComputeCapability(int *major, int *minor, int device UNUSED) {
    *major = board.major;
    *minor = board.minor;
    return OK;
}

/* Primary contexts: their handles are the addresses of these bytes. */
static char primary[MAX_DEVICES];
static _Thread_local char *current;

static char *current_context(void) {
    if (current) return current;
    int device = board_current();
    return board_has_context(device) ? &primary[device] : NULL;
}

static void enter(char *context) {
    current = context;
    if (context >= primary && context < primary + MAX_DEVICES)
        board_select((int)(context - primary));
}

API int cuDevicePrimaryCtxRetain(char **context, int device) {
    if (!board_has(device)) return INVALID_DEVICE;
    board_open_context(device);
    *context = &primary[device];
    return OK;
}

API int cuDevicePrimaryCtxRelease_v2(int device UNUSED) { return OK; }

API int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active) {
    if (flags) *flags = 0;
    *active = board_has_context(device);
    return OK;
}

API int cuCtxGetCurrent(char **context) {
    *context = current_context();
    return OK;
}

API int cuCtxSetCurrent(char *context) {
    enter(context);
    return OK;
}

API int cuCtxPushCurrent_v2(char *context) {
    enter(context);
    return OK;
}

API int cuCtxPopCurrent_v2(char **context) {
    if (context) *context = current_context();
    return OK;
}

API int cuCtxGetDevice(int *device) {
    *device = board_current();
    return OK;
}

API int cuCtxGetLimit(size_t *value, int limit UNUSED) {
    *value = 1024;
    return OK;
}

API int cuCtxSynchronize(void) { return OK; }
API int cuCtxSetLimit(void) { return OK; }
API int cuStreamSynchronize(void) { return OK; }

API int cuGetErrorString(int status, const char **text) {
    *text = status == OK              ? "no error"
            : status == OUT_OF_MEMORY ? "out of memory"
            : status == NO_DEVICE     ? "no CUDA-capable device is detected"
            : status == NOT_SUPPORTED ? "operation not supported"
                                      : "invalid argument";
    return OK;
}

API int cuGetErrorName(int status, const char **text) {
    *text = status == OK              ? "CUDA_SUCCESS"
            : status == OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY"
            : status == NO_DEVICE     ? "CUDA_ERROR_NO_DEVICE"
            : status == NOT_SUPPORTED ? "CUDA_ERROR_NOT_SUPPORTED"
                                      : "CUDA_ERROR_INVALID_VALUE";
    return OK;
}

int cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes);
API int cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes) {
    return cudaMemGetInfo(free_bytes, total_bytes);
}
API int cuMemAlloc_v2(void **out, size_t size) { return cudaMalloc(out, size); }
API int cuMemFree_v2(void *address) { return cudaFree(address); }

API int cuMemcpyHtoD_v2(void *target, const void *source, size_t size) {
    memory_copy(target, source, size, HOST_TO_DEVICE);
    return OK;
}
API int cuMemcpyDtoH_v2(void *target, const void *source, size_t size) {
    memory_copy(target, source, size, DEVICE_TO_HOST);
    return OK;
}
API int cuMemcpyHtoDAsync_v2(void *target, const void *source, size_t size,
                             void *stream UNUSED) {
    return cuMemcpyHtoD_v2(target, source, size);
}
API int cuMemcpyDtoHAsync_v2(void *target, const void *source, size_t size,
                             void *stream UNUSED) {
    return cuMemcpyDtoH_v2(target, source, size);
}
API int cuMemcpyDtoDAsync_v2(void *target, const void *source, size_t size,
                             void *stream UNUSED) {
    memory_copy(target, source, size, DEVICE_TO_DEVICE);
    return OK;
}
API int cuMemcpyAsync(void *target, const void *source, size_t size, void *stream UNUSED) {
    memory_copy(target, source, size, BY_ADDRESS);
    return OK;
}

API int cuMemsetD8_v2(void *target, unsigned char value, size_t count) {
    memory_fill(target, value, count);
    return OK;
}
API int cuMemsetD8Async(void *target, unsigned char value, size_t count, void *stream UNUSED) {
    return cuMemsetD8_v2(target, value, count);
}
API int cuMemsetD32Async(uint32_t *target, uint32_t value, size_t count, void *stream UNUSED) {
    if (count * sizeof value <= board.copy_limit)
        for (size_t i = 0; i < count; i++) target[i] = value;
    return OK;
}
API int cuStreamWriteValue32_v2(void *stream UNUSED, volatile uint32_t *address, uint32_t value,
                                unsigned flags UNUSED) {
    *address = value;
    return OK;
}

/* CUpointer_attribute */
enum {
    POINTER_CONTEXT = 1,
    POINTER_TYPE = 2,
    POINTER_DEVICE = 3,
    POINTER_HOST = 4,
    POINTER_BUFFER = 7,
    POINTER_IS_MANAGED = 8,
    POINTER_ORDINAL = 9,
    POINTER_START = 11,
    POINTER_SIZE = 12,
};

API int cuPointerGetAttribute(void *value, int attribute, const void *address) {
    memory_range range;
    if (!memory_lookup(address, &range)) return INVALID_VALUE;
    switch (attribute) {
    case POINTER_CONTEXT: *(char **)value = &primary[range.device]; break;
    case POINTER_TYPE: *(int *)value = memory_is_device(&range) ? 2 : 1; break;
    case POINTER_DEVICE:
    case POINTER_HOST: *(const void **)value = address; break;
    case POINTER_BUFFER: *(uint64_t *)value = range.start >> 12; break;
    case POINTER_ORDINAL: *(int *)value = range.device; break;
    case POINTER_START: *(uintptr_t *)value = range.start; break;
    case POINTER_SIZE: *(size_t *)value = range.size; break;
    default: *(int *)value = 0;
    }
    return OK;
}

API int cuMemGetAddressRange_v2(uintptr_t *start, size_t *size, const void *address) {
    memory_range range;
    if (!memory_lookup(address, &range)) return NOT_FOUND;
    if (start) *start = range.start;
    if (size) *size = range.size;
    return OK;
}
