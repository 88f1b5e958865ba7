/* NVML: the device as tools and torch's out-of-memory message see it.
 *
 * It shows every device of the machine, whatever CUDA_VISIBLE_DEVICES says. Handles are the
 * addresses of bytes.
 */
#define _GNU_SOURCE
#include "device.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    NVML_OK = 0,
    NVML_INVALID_ARGUMENT = 2,
    NVML_NOT_SUPPORTED = 3,
    NVML_NOT_FOUND = 6,
    NVML_SMALL = 7,
    NVML_TIMEOUT = 10,
    NVML_UNKNOWN = 999,
};
#define IDLE_CELSIUS 30
#define IDLE_MILLIWATTS 60000
#define DRIVER_VERSION "580.00.00"
#define LIBRARY_VERSION "13.580.00"
#define MAX_SHOWN 512
#define NVML_EVENT_XID 8ull

typedef struct {
    unsigned long long total, free, used;
} memory_info;

typedef struct {
    unsigned version;
    unsigned long long total, reserved, free, used;
} memory_info_v2;

typedef struct {
    unsigned pid;
    unsigned long long used;
} process_info;

typedef struct {
    unsigned pid;
    unsigned long long used;
    unsigned instance, compute_instance; /* of MIG; all bits set: none */
} process_info_v2;

typedef struct {
    char legacy_id[16];
    unsigned domain, bus, device, device_id, subsystem_id;
    char id[32];
} bus_info;

static char devices[MAX_DEVICES];

static int index_of(const void *handle) { return (int)((const char *)handle - devices); }

static int put(char *text, unsigned room, const char *value) {
    if (strlen(value) >= room) return NVML_SMALL;
    memcpy(text, value, strlen(value) + 1);
    return NVML_OK;
}

API int nvmlInit_v2(void) { return NVML_OK; }
API int nvmlInit(void) { return NVML_OK; }
API int nvmlInitWithFlags(void) { return NVML_OK; }
API int nvmlShutdown(void) { return NVML_OK; }

API const char *nvmlErrorString(int status) {
    switch (status) {
    case NVML_OK: return "Success";
    case NVML_INVALID_ARGUMENT: return "Invalid Argument";
    case NVML_NOT_SUPPORTED: return "Not Supported";
    case NVML_NOT_FOUND: return "Not Found";
    case NVML_SMALL: return "Insufficient Size";
    default: return "Unknown Error";
    }
}

API int nvmlSystemGetDriverVersion(char *text, unsigned room) {
    return put(text, room, DRIVER_VERSION);
}
API int nvmlSystemGetNVMLVersion(char *text, unsigned room) {
    return put(text, room, LIBRARY_VERSION);
}
API int nvmlSystemGetCudaDriverVersion_v2(int *version) {
    *version = board.cuda_version;
    return NVML_OK;
}
API int nvmlSystemGetCudaDriverVersion(int *version) {
    return nvmlSystemGetCudaDriverVersion_v2(version);
}

API int nvmlDeviceGetCount_v2(unsigned *count) {
    *count = (unsigned)board.count;
    return NVML_OK;
}
API int nvmlDeviceGetCount(unsigned *count) { return nvmlDeviceGetCount_v2(count); }

API int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle) {
    if (index >= (unsigned)board.count) return NVML_INVALID_ARGUMENT;
    *handle = &devices[index];
    return NVML_OK;
}
API int nvmlDeviceGetHandleByIndex(unsigned index, void **handle) {
    return nvmlDeviceGetHandleByIndex_v2(index, handle);
}
API int nvmlDeviceGetHandleByPciBusId_v2(const char *bus, void **handle) {
    int index = board_from_bus(bus);
    if (index < 0 || index >= board.count) return NVML_NOT_FOUND;
    return nvmlDeviceGetHandleByIndex_v2((unsigned)index, handle);
}

static void uuid_text(char *text, size_t room, int index) {
    unsigned char b[16];
    board_uuid(b, index);
    snprintf(text, room,
             "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", b[0],
             b[1], b[2], b[3], b[4], b[5], b[6], b[7], b[8], b[9], b[10], b[11], b[12], b[13],
             b[14], b[15]);
}

API int nvmlDeviceGetUUID(const void *handle, char *text, unsigned room) {
    char uuid[48];
    uuid_text(uuid, sizeof uuid, index_of(handle));
    return put(text, room, uuid);
}
API int nvmlDeviceGetHandleByUUID(const char *wanted, void **handle) {
    char uuid[48];
    for (int index = 0; index < board.count; index++) {
        uuid_text(uuid, sizeof uuid, index);
        if (!strcmp(uuid, wanted)) return nvmlDeviceGetHandleByIndex_v2((unsigned)index, handle);
    }
    return NVML_NOT_FOUND;
}

API int nvmlDeviceGetIndex(const void *handle, unsigned *index) {
    *index = (unsigned)index_of(handle);
    return NVML_OK;
}
API int nvmlDeviceGetMinorNumber(const void *handle, unsigned *number) {
    return nvmlDeviceGetIndex(handle, number);
}
API int nvmlDeviceGetName(const void *handle UNUSED, char *text, unsigned room) {
    return put(text, room, board.name);
}

API int nvmlDeviceGetMemoryInfo(const void *handle, memory_info *info) {
    uint64_t used = board_used(index_of(handle));
    *info = (memory_info){board.total_bytes, board.total_bytes - used, used};
    return NVML_OK;
}
API int nvmlDeviceGetMemoryInfo_v2(const void *handle, memory_info_v2 *info) {
    uint64_t used = board_used(index_of(handle));
    info->total = board.total_bytes;
    info->reserved = 0;
    info->free = board.total_bytes - used;
    info->used = used;
    return NVML_OK;
}

API int nvmlDeviceGetPciInfo_v3(const void *handle, bus_info *info) {
    int index = index_of(handle);
    memset(info, 0, sizeof *info);
    info->bus = (unsigned)index + 1;
    snprintf(info->legacy_id, sizeof info->legacy_id, "0000:%02X:00.0", info->bus & 0xffu);
    board_bus(info->id, sizeof info->id, index);
    return NVML_OK;
}

API int nvmlDeviceGetUtilizationRates(const void *handle UNUSED, unsigned rates[2]) {
    rates[0] = rates[1] = 0;
    return NVML_OK;
}
API int nvmlDeviceGetTemperature(const void *handle UNUSED, int sensor UNUSED, unsigned *value) {
    *value = IDLE_CELSIUS;
    return NVML_OK;
}
API int nvmlDeviceGetPowerUsage(const void *handle UNUSED, unsigned *value) {
    *value = IDLE_MILLIWATTS;
    return NVML_OK;
}
API int nvmlDeviceGetTotalEnergyConsumption(const void *handle UNUSED, unsigned long long *value) {
    *value = 0; /* no board draws anything */
    return NVML_OK;
}
API int nvmlDeviceGetClockInfo(const void *handle UNUSED, int kind UNUSED, unsigned *value) {
    *value = (unsigned)board.clock_mhz;
    return NVML_OK;
}
API int nvmlDeviceGetMigMode(const void *handle UNUSED, unsigned *now, unsigned *pending) {
    *now = *pending = 0;
    return NVML_OK;
}
API int nvmlDeviceGetCudaComputeCapability(const void *handle UNUSED, int *major, int *minor) {
    *major = board.major;
    *minor = board.minor;
    return NVML_OK;
}

/* Both versions begin with pid and bytes. */
static int list_processes(const void *handle, unsigned *count, char *out, size_t size) {
    static _Thread_local ledger_entry entries[MAX_SHOWN];
    int index = index_of(handle);
    unsigned room = *count, found = board_processes(index, entries, MAX_SHOWN);
    *count = found;
    if (found > room) return NVML_SMALL;
    for (unsigned i = 0; i < found; i++) {
        process_info_v2 shown = {(unsigned)entries[i].pid, entries[i].used[index], ~0u, ~0u};
        memcpy(out + i * size, &shown, size);
    }
    return NVML_OK;
}

API int nvmlDeviceGetComputeRunningProcesses(const void *handle, unsigned *count,
                                             process_info *processes) {
    return list_processes(handle, count, (char *)processes, sizeof *processes);
}
API int nvmlDeviceGetComputeRunningProcesses_v2(const void *handle, unsigned *count,
                                                process_info_v2 *processes) {
    return list_processes(handle, count, (char *)processes, sizeof *processes);
}
API int nvmlDeviceGetComputeRunningProcesses_v3(const void *handle, unsigned *count,
                                                process_info_v2 *processes) {
    return list_processes(handle, count, (char *)processes, sizeof *processes);
}
API int nvmlDeviceGetGraphicsRunningProcesses_v3(const void *handle UNUSED, unsigned *count) {
    *count = 0;
    return NVML_OK;
}
API int nvmlDeviceGetGraphicsRunningProcesses(const void *handle, unsigned *count) {
    return nvmlDeviceGetGraphicsRunningProcesses_v3(handle, count);
}

/* Links between devices and fabrics, error counters: a plain machine has none. */
API int nvmlDeviceGetNvLinkRemotePciInfo_v2(void) { return NVML_NOT_SUPPORTED; }
API int nvmlDeviceGetNvLinkRemoteDeviceType(void) { return NVML_NOT_SUPPORTED; }
API int nvmlDeviceGetGpuFabricInfoV(void) { return NVML_NOT_SUPPORTED; }
API int nvmlDeviceGetEccMode(void) { return NVML_NOT_SUPPORTED; }
API int nvmlDeviceGetMemoryErrorCounter(void) { return NVML_NOT_SUPPORTED; }
API int nvmlDeviceGetCurrentClocksThrottleReasons(void) { return NVML_NOT_SUPPORTED; }

/* Errors of the hardware: there are none. */
API int nvmlDeviceGetTotalEccErrors(const void *handle UNUSED, int kind UNUSED,
                                    int counter UNUSED, uint64_t *count) {
    *count = 0;
    return NVML_OK;
}
API int nvmlDeviceGetSupportedEventTypes(const void *handle UNUSED, uint64_t *types) {
    *types = NVML_EVENT_XID;
    return NVML_OK;
}
API int nvmlEventSetCreate(void **set) { return object_new(set, 1) ? NVML_UNKNOWN : NVML_OK; }
API int nvmlDeviceRegisterEvents(void) { return NVML_OK; }
API int nvmlEventSetWait_v2(void) { return NVML_TIMEOUT; }
API int nvmlEventSetFree(void *set) {
    free(set);
    return NVML_OK;
}
