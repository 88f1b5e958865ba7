/* NCCL: communicators of any size with one rank in this process.
 *
 * All ranks are taken to be alike: a gather puts the rank's own part in every place, so that
 * checks for equality across ranks pass. What another root would send stays as it is. Buffers of a
 * communicator are only counted against the capacity.
 */
#define _GNU_SOURCE
#include "device.h"

#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#define UNIQUE_ID_BYTES 128
#define RANDOM_BYTES 32
#define UNHANDLED_CUDA_ERROR 1

typedef struct {
    char bytes[UNIQUE_ID_BYTES];
} unique_id;

typedef struct {
    int size, rank, device;
} communicator;

API int ncclGetUniqueId(unique_id *id) {
    memset(id, 0, sizeof *id);
    return getrandom(id, RANDOM_BYTES, 0) == RANDOM_BYTES ? OK : INVALID_VALUE;
}
API int ncclCommGetUniqueId(void *parent UNUSED, unique_id *id) { return ncclGetUniqueId(id); }

static int opened[MAX_DEVICES];
static const char *last_error = "";

/* How many communicators this process has opened on one device, at most. */
API int memagent_communicators(void) {
    int most = 0;
    for (int device = 0; device < MAX_DEVICES; device++) {
        int count = __atomic_load_n(&opened[device], __ATOMIC_RELAXED);
        if (count > most) most = count;
    }
    return most;
}

static int open_communicator(communicator **out, int size, int rank, int device) {
    board_open_context(device);
    if (!board_charge(device, board.communicator_bytes)) {
        last_error = "Cuda failure 2 'out of memory'";
        return UNHANDLED_CUDA_ERROR;
    }
    if (board_has(device)) __atomic_add_fetch(&opened[device], 1, __ATOMIC_RELAXED);
    if (object_new((void **)out, sizeof **out)) return OUT_OF_MEMORY;
    **out = (communicator){size, rank, device};
    return OK;
}

API int ncclCommInitRank(communicator **out, int size, unique_id id UNUSED, int rank) {
    return open_communicator(out, size, rank, board_current());
}
API int ncclCommInitRankConfig(communicator **out, int size, unique_id id UNUSED, int rank,
                               const void *config UNUSED) {
    return open_communicator(out, size, rank, board_current());
}
API int ncclCommInitRankScalable(communicator **out, int size, int rank) {
    return open_communicator(out, size, rank, board_current());
}
API int ncclCommInitAll(communicator **out, int count, const int *devices) {
    for (int i = 0; i < count; i++) {
        int status = open_communicator(&out[i], count, i, devices ? devices[i] : i);
        if (status) return status;
    }
    return OK;
}
API int ncclCommSplit(const communicator *parent, int color, int key UNUSED, communicator **out) {
    *out = NULL;
    return color < 0 ? OK : open_communicator(out, parent->size, parent->rank, parent->device);
}
API int ncclCommShrink(const communicator *parent, const int *left_out UNUSED, int count,
                       communicator **out) {
    return open_communicator(out, parent->size - count, parent->rank, parent->device);
}
API int ncclCommGrow(const communicator *parent, int size, const unique_id *id UNUSED, int rank,
                     communicator **out) {
    return open_communicator(out, size, rank < 0 && parent ? parent->rank : rank,
                             board_current());
}

API int ncclCommCount(const communicator *group, int *size) {
    *size = group->size;
    return OK;
}
API int ncclCommUserRank(const communicator *group, int *rank) {
    *rank = group->rank;
    return OK;
}
API int ncclCommCuDevice(const communicator *group, int *device) {
    *device = group->device;
    return OK;
}
API int ncclCommGetAsyncError(const communicator *group UNUSED, int *status) {
    *status = OK;
    return OK;
}
API int ncclCommMemStats(const communicator *group UNUSED, int statistic UNUSED, uint64_t *value) {
    *value = 0;
    return OK;
}
API int ncclCommRegister(const communicator *group UNUSED, void *address UNUSED,
                         size_t size UNUSED, void **handle) {
    return object_new(handle, OPAQUE_BYTES);
}
API int ncclCommWindowRegister(const communicator *group, void *address, size_t size,
                               void **window) {
    return ncclCommRegister(group, address, size, window);
}
API int ncclRedOpCreatePreMulSum(int *operation) {
    *operation = 5; /* the first after the predefined ones */
    return OK;
}
API const char *ncclGetLastError(const communicator *group UNUSED) { return last_error; }

API int ncclMemAlloc(void **out, size_t size) { return cudaMalloc(out, size); }
API int ncclMemFree(void *address) { return cudaFree(address); }

/* Bytes of an element: int8, uint8, int32, uint32, int64, uint64, float16, 32, 64, bfloat16,
 * float8 twice. */
static size_t element_bytes(int type) {
    static const unsigned char sizes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
    return type >= 0 && type < (int)sizeof sizes ? sizes[type] : 4;
}

static int move(void *target, const void *source, size_t count, int type) {
    if (target && source) memory_copy(target, source, count * element_bytes(type), BY_ADDRESS);
    return OK;
}

API int ncclAllReduce(const void *source, void *target, size_t count, int type) {
    return move(target, source, count, type);
}
API int ncclReduce(const void *source, void *target, size_t count, int type) {
    return move(target, source, count, type);
}
API int ncclBroadcast(const void *source, void *target, size_t count, int type, int root,
                      const communicator *group) {
    return root == group->rank ? move(target, source, count, type) : OK;
}
API int ncclAllGather(const void *source, void *target, size_t count, int type,
                      const communicator *group) {
    size_t part = count * element_bytes(type);
    if (part * (size_t)group->size > board.copy_limit) return OK;
    for (int rank = 0; rank < group->size; rank++)
        move((char *)target + (size_t)rank * part, source, count, type);
    return OK;
}
API int ncclReduceScatter(const void *source, void *target, size_t count, int type,
                          int operation UNUSED, const communicator *group) {
    size_t offset = (size_t)group->rank * count * element_bytes(type);
    return move(target, (const char *)source + offset, count, type);
}
