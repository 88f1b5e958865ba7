/* A small libnvidia-ml.so.1 for the tests: one GPU, and a slice of it, as the file named by MEMAGENT_FAKE_NVML says.

   The file is read anew at each call; its lines are `KEY VALUE...`:
     return FUNCTION CODE        FUNCTION fails with this nvmlReturn_t
     gpu UUID | slice UUID       what nvmlDeviceGetHandleByUUID finds
     total | free | used | reserved | gpu_utilization | power_mw | temperature | ecc_errors | events_supported NUMBER
     compute PID BYTES           a line of a list of processes; BYTES -1 stands for "not available"
     graphics PID BYTES
     xid CODE                    an event; each is handed out once, in order
     calls PATH                  the name of each function called is appended to PATH

   Built without memory info v2 and process lists v3 when OLD_DRIVER is defined. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SUCCESS 0
#define UNINITIALIZED 1
#define INVALID_ARGUMENT 2
#define NOT_FOUND 6
#define INSUFFICIENT_SIZE 7
#define TIMEOUT 10
#define VERSION_MISMATCH 25
#define NOT_AVAILABLE 0xffffffffffffffffull
#define XID_CRITICAL_ERROR 8ull

typedef unsigned long long u64;
typedef struct { u64 total, free, used; } memory_v1;
typedef struct { unsigned version; u64 total, reserved, free, used; } memory_v2;
typedef struct { unsigned pid; u64 used; unsigned gpu_instance, compute_instance; } process;
typedef struct { unsigned gpu, memory; } utilization;
typedef struct { void *device; u64 type, data; unsigned gpu_instance, compute_instance; } event;

static int gpu, slice, event_set; /* their addresses are the handles */
static int users, xids_taken, registered;

/* The rest of the n-th line that begins with KEY and a space, in BUFFER; 0 where there is none. */
static int line(const char *key, int n, char *buffer, size_t size) {
    const char *path = getenv("MEMAGENT_FAKE_NVML");
    FILE *file = path ? fopen(path, "r") : NULL;
    char text[512];
    int found = 0;
    if (!file) return 0;
    while (!found && fgets(text, sizeof text, file)) {
        size_t length = strlen(key);
        if (strncmp(text, key, length) || text[length] != ' ' || n-- > 0) continue;
        text[strcspn(text, "\n")] = 0;
        snprintf(buffer, size, "%s", text + length + 1);
        found = 1;
    }
    fclose(file);
    return found;
}

static u64 number(const char *key) {
    char text[256];
    return line(key, 0, text, sizeof text) ? strtoull(text, NULL, 10) : 0;
}

/* What FUNCTION is told to return; writes the call down. */
static int begin(const char *function) {
    char text[256], key[128];
    if (line("calls", 0, text, sizeof text)) {
        FILE *file = fopen(text, "a");
        if (file) { fprintf(file, "%s\n", function); fclose(file); }
    }
    snprintf(key, sizeof key, "return %s", function);
    if (line(key, 0, text, sizeof text)) return atoi(text);
    return users || !strcmp(function, "nvmlInitWithFlags") ? SUCCESS : UNINITIALIZED;
}
#define BEGIN int code = begin(__func__); if (code) return code

int nvmlInitWithFlags(unsigned flags) {
    BEGIN;
    (void)flags;
    if (!users++) xids_taken = registered = 0;
    return SUCCESS;
}

int nvmlShutdown(void) {
    BEGIN;
    users--;
    return SUCCESS;
}

const char *nvmlErrorString(int code) { (void)code; return "an error that the binding has no text for"; }

int nvmlDeviceGetHandleByUUID(const char *uuid, void **device) {
    char text[256];
    BEGIN;
    if (line("gpu", 0, text, sizeof text) && !strcmp(text, uuid)) *device = &gpu;
    else if (line("slice", 0, text, sizeof text) && !strcmp(text, uuid)) *device = &slice;
    else return NOT_FOUND;
    return SUCCESS;
}

int nvmlDeviceIsMigDeviceHandle(void *device, unsigned *answer) {
    BEGIN;
    *answer = device == &slice;
    return SUCCESS;
}

int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(void *device, void **board) {
    BEGIN;
    if (device != &slice) return INVALID_ARGUMENT;
    *board = &gpu;
    return SUCCESS;
}

int nvmlDeviceGetMemoryInfo(void *device, memory_v1 *memory) { /* version 1 counts what the driver keeps as used */
    BEGIN;
    (void)device;
    memory->total = number("total");
    memory->free = number("free");
    memory->used = number("used") + number("reserved");
    return SUCCESS;
}

static int processes(const char *key, unsigned *count, process *list) {
    char text[256];
    unsigned there = 0, room = *count;
    while (line(key, there, text, sizeof text)) {
        if (list && there < room) {
            long long used = -1;
            unsigned pid = 0;
            sscanf(text, "%u %lld", &pid, &used);
            list[there] = (process){pid, used < 0 ? NOT_AVAILABLE : (u64)used, 0, 0};
        }
        there++;
    }
    *count = there;
    return there > room ? INSUFFICIENT_SIZE : SUCCESS;
}

int nvmlDeviceGetComputeRunningProcesses_v2(void *device, unsigned *count, process *list) {
    BEGIN;
    (void)device;
    return processes("compute", count, list);
}

int nvmlDeviceGetGraphicsRunningProcesses_v2(void *device, unsigned *count, process *list) {
    BEGIN;
    (void)device;
    return processes("graphics", count, list);
}

#ifndef OLD_DRIVER
int nvmlDeviceGetMemoryInfo_v2(void *device, memory_v2 *memory) {
    BEGIN;
    (void)device;
    if (memory->version != (sizeof(memory_v2) | 2u << 24)) return VERSION_MISMATCH;
    memory->total = number("total");
    memory->reserved = number("reserved");
    memory->free = number("free");
    memory->used = number("used");
    return SUCCESS;
}

int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *count, process *list) {
    BEGIN;
    (void)device;
    return processes("compute", count, list);
}

int nvmlDeviceGetGraphicsRunningProcesses_v3(void *device, unsigned *count, process *list) {
    BEGIN;
    (void)device;
    return processes("graphics", count, list);
}
#endif

int nvmlDeviceGetUtilizationRates(void *device, utilization *rates) {
    BEGIN;
    if (device == &slice) return 3; /* NVML_ERROR_NOT_SUPPORTED, as on real slices */
    rates->gpu = (unsigned)number("gpu_utilization");
    rates->memory = 0;
    return SUCCESS;
}

int nvmlDeviceGetPowerUsage(void *device, unsigned *milliwatts) {
    BEGIN;
    if (device == &slice) return 3;
    *milliwatts = (unsigned)number("power_mw");
    return SUCCESS;
}

int nvmlDeviceGetTotalEnergyConsumption(void *device, u64 *millijoules) {
    BEGIN;
    if (device == &slice) return 3;
    *millijoules = number("energy_mj");
    return SUCCESS;
}

int nvmlDeviceGetTemperature(void *device, unsigned sensor, unsigned *degrees) {
    BEGIN;
    if (device == &slice || sensor) return 3;
    *degrees = (unsigned)number("temperature");
    return SUCCESS;
}

int nvmlDeviceGetTotalEccErrors(void *device, unsigned type, unsigned counter, u64 *count) {
    BEGIN;
    if (device == &slice || type != 1 || counter != 0) return 3; /* uncorrected, volatile */
    *count = number("ecc_errors");
    return SUCCESS;
}

int nvmlDeviceGetSupportedEventTypes(void *device, u64 *types) {
    BEGIN;
    if (device == &slice) return 3;
    *types = number("events_supported");
    return SUCCESS;
}

int nvmlEventSetCreate(void **set) {
    BEGIN;
    *set = &event_set;
    return SUCCESS;
}

int nvmlDeviceRegisterEvents(void *device, u64 types, void *set) {
    BEGIN;
    if (device != &gpu || set != &event_set) return INVALID_ARGUMENT;
    registered = types == XID_CRITICAL_ERROR;
    return SUCCESS;
}

int nvmlEventSetWait_v2(void *set, event *found, unsigned timeout_ms) {
    char text[256];
    BEGIN;
    if (set != &event_set || timeout_ms) return INVALID_ARGUMENT; /* whoever waits would hang here */
    if (!registered || !line("xid", xids_taken, text, sizeof text)) return TIMEOUT;
    xids_taken++;
    *found = (event){&gpu, XID_CRITICAL_ERROR, strtoull(text, NULL, 10), 0, 0};
    return SUCCESS;
}

int nvmlEventSetFree(void *set) {
    BEGIN;
    return set == &event_set ? SUCCESS : INVALID_ARGUMENT;
}
