/* Device memory: address space that costs nothing until somebody writes to it.
 *
 * Addresses come from an arena: the lowest gap that is wide enough, or the highest. Torch's
 * allocator breaks ties between blocks of one size by address, so that the order decides which
 * block it takes.
 *
 * Untouched pages read as zeros. Huge pages are off: a copy of a kilobyte must not touch two
 * megabytes.
 */
#define _GNU_SOURCE
#include "device.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define ARENA_START ((uintptr_t)0x300000000000)
#define ARENA_END ((uintptr_t)0x500000000000)
#define HOST_PAGE_BYTES 4096
#define CUDA_ALIGNMENT 512

/* Sorted by address. The lock also guards the gaps of the arena. */
static memory_range *ranges;
static size_t range_count, range_room;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static size_t rounded(size_t size, size_t unit) { return (size + unit - 1) / unit * unit; }

static void hold(void) { pthread_mutex_lock(&lock); }
static void let_go(void) { pthread_mutex_unlock(&lock); }
__attribute__((constructor)) static void survive_forks(void) {
    pthread_atfork(hold, let_go, let_go);
}

/* Index of the first range that begins after the address. */
static size_t index_after(uintptr_t address) {
    size_t low = 0, high = range_count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (ranges[middle].start <= address) low = middle + 1;
        else high = middle;
    }
    return low;
}

static bool insert(memory_range range) {
    if (range_count == range_room) {
        size_t room = range_room ? 2 * range_room : 1024;
        memory_range *grown = realloc(ranges, room * sizeof *ranges);
        if (!grown) return false;
        ranges = grown;
        range_room = room;
    }
    size_t index = index_after(range.start);
    memmove(&ranges[index + 1], &ranges[index], (range_count - index) * sizeof *ranges);
    ranges[index] = range;
    range_count++;
    return true;
}

static bool insert_locked(memory_range range) {
    hold();
    bool done = insert(range);
    let_go();
    return done;
}

bool memory_forget(const void *address, memory_range *removed) {
    hold();
    size_t index = index_after((uintptr_t)address);
    bool found = index && ranges[index - 1].start == (uintptr_t)address;
    if (found) {
        *removed = ranges[index - 1];
        memmove(&ranges[index - 1], &ranges[index], (range_count - index) * sizeof *ranges);
        range_count--;
    }
    let_go();
    return found;
}

bool memory_lookup(const void *address, memory_range *found) {
    hold();
    size_t index = index_after((uintptr_t)address);
    bool inside = index && (uintptr_t)address - ranges[index - 1].start < ranges[index - 1].size;
    if (inside) *found = ranges[index - 1];
    let_go();
    return inside;
}

bool memory_is_device(const memory_range *range) {
    return range->kind == RANGE_DEVICE || range->kind == RANGE_RESERVED;
}

static uintptr_t end_of(const memory_range *range) {
    return range->start + rounded(range->size, PAGE_BYTES);
}

static uintptr_t lowest_gap(size_t size) {
    uintptr_t start = ARENA_START;
    for (size_t i = index_after(ARENA_START - 1); i < range_count; i++) {
        if (ranges[i].start >= ARENA_END || ranges[i].start - start >= size) break;
        start = end_of(&ranges[i]);
    }
    return start + size <= ARENA_END ? start : 0;
}

static uintptr_t highest_gap(size_t size) {
    uintptr_t end = ARENA_END;
    for (size_t i = index_after(ARENA_END - 1); i > 0; i--) {
        const memory_range *range = &ranges[i - 1];
        if (range->start < ARENA_START || end - end_of(range) >= size) break;
        end = range->start;
    }
    return end - size >= ARENA_START ? end - size : 0;
}

void *memory_reserve(size_t size, int device, bool accessible) {
    size_t whole = rounded(size, PAGE_BYTES);
    int protection = accessible ? PROT_READ | PROT_WRITE : PROT_NONE;
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE;
    hold();
    uintptr_t gap = board.falling_addresses ? highest_gap(whole) : lowest_gap(whole);
    void *start = gap ? mmap((void *)gap, whole, protection, flags, -1, 0) : MAP_FAILED;
    if (start != MAP_FAILED && start != (void *)gap) { /* an old kernel takes it for a hint */
        munmap(start, whole);
        start = MAP_FAILED;
    }
    memory_range range = {.start = gap, .size = size, .device = device};
    range.kind = accessible ? RANGE_DEVICE : RANGE_RESERVED;
    if (start != MAP_FAILED && !insert(range)) {
        munmap(start, whole);
        start = MAP_FAILED;
    }
    let_go();
    if (start == MAP_FAILED) return NULL;
    madvise(start, whole, MADV_NOHUGEPAGE);
    madvise(start, whole, MADV_DONTDUMP);
    return start;
}

/* The driver gives whole pages, and cuts small requests out of a common one. */
static size_t charge_of(size_t size) {
    return rounded(size, size >= PAGE_BYTES / 2 ? PAGE_BYTES : CUDA_ALIGNMENT);
}

API int cudaMalloc(void **out, size_t size) {
    int device = board_current();
    board_open_context(device);
    *out = NULL;
    if (!board_has(device)) return runtime_error(NO_DEVICE);
    if (!size) return OK;
    if (!board_charge(device, charge_of(size))) return runtime_error(OUT_OF_MEMORY);
    *out = memory_reserve(size, device, true);
    if (*out) return OK;
    board_release(device, charge_of(size));
    return runtime_error(OUT_OF_MEMORY);
}

API int cudaFree(void *address) {
    board_open_context(board_current());
    memory_range range;
    if (!address) return OK;
    if (!memory_lookup(address, &range) || range.kind != RANGE_DEVICE)
        return runtime_error(INVALID_VALUE);
    if (!memory_forget(address, &range)) return runtime_error(INVALID_VALUE);
    board_release(range.device, charge_of(range.size));
    munmap(address, rounded(range.size, PAGE_BYTES));
    return OK;
}

API int cudaMallocManaged(void **out, size_t size, unsigned flags UNUSED) {
    return cudaMalloc(out, size);
}

API int cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes) {
    int device = board_current();
    board_open_context(device);
    if (!board_has(device)) return runtime_error(NO_DEVICE);
    *total_bytes = board.total_bytes;
    *free_bytes = board.total_bytes - board_used(board_physical(device));
    return OK;
}

/* The stream-ordered pool of cudaMallocAsync: everything is done at once. */
static struct {
    uint64_t used, peak, threshold;
} pool;
enum { POOL_THRESHOLD = 4, POOL_RESERVED, POOL_RESERVED_PEAK, POOL_USED, POOL_USED_PEAK };

API int cudaMallocAsync(void **out, size_t size, void *stream UNUSED) {
    int status = cudaMalloc(out, size);
    if (status) return status;
    pool.used += size;
    if (pool.used > pool.peak) pool.peak = pool.used;
    return OK;
}

API int cudaFreeAsync(void *address, void *stream UNUSED) {
    memory_range range;
    if (memory_lookup(address, &range)) pool.used -= range.size;
    return cudaFree(address);
}

API int cudaMemPoolGetAttribute(void *handle UNUSED, int attribute, void *value) {
    if (attribute < POOL_THRESHOLD) *(int *)value = 1; /* reuse is allowed */
    else if (attribute == POOL_THRESHOLD) *(uint64_t *)value = pool.threshold;
    else if (attribute == POOL_RESERVED_PEAK || attribute == POOL_USED_PEAK)
        *(uint64_t *)value = pool.peak;
    else *(uint64_t *)value = pool.used;
    return OK;
}

API int cudaMemPoolSetAttribute(void *handle UNUSED, int attribute, void *value) {
    if (attribute == POOL_THRESHOLD) pool.threshold = *(uint64_t *)value;
    if (attribute == POOL_RESERVED_PEAK || attribute == POOL_USED_PEAK) pool.peak = pool.used;
    return OK;
}

API int cudaDeviceGetDefaultMemPool(void **handle, int device UNUSED) {
    *handle = &pool;
    return OK;
}

/* Page-locked memory is plain memory. */
API int cudaHostAlloc(void **out, size_t size, unsigned flags UNUSED) {
    board_open_context(board_current());
    *out = NULL;
    if (!size) return OK;
    size_t whole = rounded(size, HOST_PAGE_BYTES);
    void *start = mmap(NULL, whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (start == MAP_FAILED) return runtime_error(OUT_OF_MEMORY);
    *out = start;
    return insert_locked((memory_range){(uintptr_t)start, size, 0, board_current(), RANGE_PINNED})
               ? OK
               : runtime_error(OUT_OF_MEMORY);
}

API int cudaMallocHost(void **out, size_t size) { return cudaHostAlloc(out, size, 0); }

API int cudaFreeHost(void *address) {
    memory_range range;
    if (!address) return OK;
    if (!memory_forget(address, &range)) return runtime_error(INVALID_VALUE);
    munmap(address, rounded(range.size, HOST_PAGE_BYTES));
    return OK;
}

API int cudaHostRegister(void *address, size_t size, unsigned flags UNUSED) {
    memory_range range = {(uintptr_t)address, size, 0, board_current(), RANGE_REGISTERED};
    return insert_locked(range) ? OK : runtime_error(OUT_OF_MEMORY);
}

API int cudaHostUnregister(void *address) {
    memory_range range;
    return memory_forget(address, &range) ? OK : runtime_error(NOT_REGISTERED);
}

API int cudaHostGetDevicePointer(void **device, void *host, unsigned flags UNUSED) {
    *device = host;
    return OK;
}

/* The first members of cudaPointerAttributes; CUDA 13 has reserved ones behind them. */
typedef struct {
    int type; /* 0 unregistered, 1 host, 2 device */
    int device;
    void *device_pointer, *host_pointer;
} pointer_attributes;

API int cudaPointerGetAttributes(pointer_attributes *attributes, const void *address) {
    memory_range range;
    *attributes = (pointer_attributes){0, -2, NULL, NULL};
    if (!memory_lookup(address, &range)) {
        attributes->host_pointer = (void *)address;
        return OK;
    }
    bool on_device = memory_is_device(&range);
    attributes->type = on_device ? 2 : 1;
    attributes->device = range.device;
    attributes->device_pointer = (void *)address;
    attributes->host_pointer = on_device ? NULL : (void *)address;
    return OK;
}
