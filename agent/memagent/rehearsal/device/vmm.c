/* Virtual memory management of the driver: what expandable segments are made of.
 *
 * Addresses are reserved without access. Physical memory is a charge without addresses. Mapping
 * gives access to a part of the reserved addresses, and holds a reference to the memory.
 */
#define _GNU_SOURCE
#include "device.h"

#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>

/* CUmemAllocationProp */
typedef struct {
    int type, handle_types;
    struct {
        int type, id; /* type 1: a device */
    } location;
    void *metadata;
    unsigned char flags[8];
} allocation_properties;

typedef struct {
    size_t size;
    int device; /* -1: the host's */
    int references;
    allocation_properties properties;
} physical_memory;

typedef struct {
    uintptr_t start;
    size_t size;
    physical_memory *memory;
} mapping;

static mapping *mappings;
static size_t mapping_count, mapping_room;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

API int cuMemGetAllocationGranularity(size_t *size, const allocation_properties *wanted UNUSED,
                                      int option UNUSED) {
    *size = PAGE_BYTES;
    return OK;
}

API int cuMemAddressReserve(uintptr_t *start, size_t size, size_t alignment UNUSED,
                            uintptr_t hint UNUSED, unsigned long long flags UNUSED) {
    *start = (uintptr_t)memory_reserve(size, board_current(), false);
    return *start ? OK : OUT_OF_MEMORY;
}

API int cuMemAddressFree(uintptr_t start, size_t size UNUSED) {
    memory_range range;
    if (!memory_forget((void *)start, &range)) return INVALID_VALUE;
    munmap((void *)start, (range.size + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES);
    return OK;
}

API int cuMemCreate(physical_memory **out, size_t size, const allocation_properties *wanted,
                    unsigned long long flags UNUSED) {
    int device = wanted->location.type == 1 ? wanted->location.id : -1;
    if (device >= 0 && !board_has(device)) return INVALID_DEVICE;
    if (device >= 0) board_open_context(device);
    if (device >= 0 && !board_charge(device, size)) return OUT_OF_MEMORY;
    if (object_new((void **)out, sizeof **out)) return OUT_OF_MEMORY;
    **out = (physical_memory){size, device, 1, *wanted};
    return OK;
}

/* The lock is held. */
static void drop_reference(physical_memory *memory) {
    if (--memory->references) return;
    if (memory->device >= 0) board_release(memory->device, memory->size);
    free(memory);
}

API int cuMemRelease(physical_memory *memory) {
    pthread_mutex_lock(&lock);
    drop_reference(memory);
    pthread_mutex_unlock(&lock);
    return OK;
}

static bool remember(mapping added) {
    if (mapping_count == mapping_room) {
        size_t room = mapping_room ? 2 * mapping_room : 1024;
        mapping *grown = realloc(mappings, room * sizeof *mappings);
        if (!grown) return false;
        mappings = grown;
        mapping_room = room;
    }
    mappings[mapping_count++] = added;
    added.memory->references++;
    return true;
}

API int cuMemMap(uintptr_t start, size_t size, size_t offset UNUSED, physical_memory *memory,
                 unsigned long long flags UNUSED) {
    if (mprotect((void *)start, size, PROT_READ | PROT_WRITE)) return INVALID_VALUE;
    pthread_mutex_lock(&lock);
    bool done = remember((mapping){start, size, memory});
    pthread_mutex_unlock(&lock);
    return done ? OK : OUT_OF_MEMORY;
}

API int cuMemUnmap(uintptr_t start, size_t size) {
    madvise((void *)start, size, MADV_DONTNEED);
    if (mprotect((void *)start, size, PROT_NONE)) return INVALID_VALUE;
    pthread_mutex_lock(&lock);
    for (size_t i = mapping_count; i-- > 0;) {
        if (mappings[i].start < start || mappings[i].start >= start + size) continue;
        drop_reference(mappings[i].memory);
        mappings[i] = mappings[--mapping_count];
    }
    pthread_mutex_unlock(&lock);
    return OK;
}

API int cuMemSetAccess(uintptr_t start UNUSED, size_t size UNUSED, const void *access UNUSED,
                       size_t count UNUSED) {
    return OK;
}

API int cuMemGetAllocationPropertiesFromHandle(allocation_properties *out,
                                               const physical_memory *memory) {
    *out = memory->properties;
    return OK;
}

API int cuMemRetainAllocationHandle(physical_memory **out, uintptr_t address) {
    int status = INVALID_VALUE;
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < mapping_count && status; i++) {
        if (address - mappings[i].start >= mappings[i].size) continue;
        *out = mappings[i].memory;
        (*out)->references++;
        status = OK;
    }
    pthread_mutex_unlock(&lock);
    return status;
}

/* Memory of another process: not here. */
API int cuMemExportToShareableHandle(void) { return NOT_SUPPORTED; }
API int cuMemImportFromShareableHandle(void) { return NOT_SUPPORTED; }
