/* Streams, events, capture and graphs. Work is done as soon as it is enqueued.
 *
 * Capture spreads: a stream that waits on an event of a capturing stream captures, too, until the
 * capture ends. Torch takes memory from the graph's pool on each of them.
 */
#define _GNU_SOURCE
#include "device.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct stream {
    int priority, device;
    unsigned long long id;
    unsigned long long capture; /* 0: none */
    void *graph;
    struct stream *joined; /* the next stream of the capture */
} stream;

typedef struct {
    double milliseconds;
    unsigned long long capture;
    void *graph;
    stream *origin;
} event;

enum { CAPTURE_NONE, CAPTURE_ACTIVE };
#define LAST_PREDEFINED 4096 /* NULL, 1 and 2 stand for default streams */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static unsigned long long stream_ids, capture_ids;

static stream *object_of(void *handle) {
    return (uintptr_t)handle > LAST_PREDEFINED ? handle : NULL;
}

static unsigned long long capture_of(void *handle) {
    const stream *given = object_of(handle);
    return given ? given->capture : 0;
}

API int cudaStreamCreateWithPriority(void **out, unsigned flags UNUSED, int priority) {
    board_open_context(board_current());
    if (object_new(out, sizeof(stream))) return runtime_error(OUT_OF_MEMORY);
    stream *created = *out;
    created->priority = priority;
    created->device = board_current();
    created->id = __atomic_add_fetch(&stream_ids, 1, __ATOMIC_RELAXED);
    return OK;
}

API int cudaStreamCreate(void **out) { return cudaStreamCreateWithPriority(out, 0, 0); }
API int cudaStreamCreateWithFlags(void **out, unsigned flags) {
    return cudaStreamCreateWithPriority(out, flags, 0);
}
API int cuStreamCreate(void **out, unsigned flags) {
    return cudaStreamCreateWithPriority(out, flags, 0);
}

/* A stream is small, and others may still hold its handle: it is never freed. */
API int cudaStreamDestroy(void *handle UNUSED) { return OK; }

API int cudaStreamGetPriority(void *handle, int *priority) {
    const stream *given = object_of(handle);
    *priority = given ? given->priority : 0;
    return OK;
}

API int cudaStreamGetId(void *handle, unsigned long long *id) {
    const stream *given = object_of(handle);
    *id = given ? given->id : 0;
    return OK;
}

API int cudaStreamGetDevice(void *handle, int *device) {
    const stream *given = object_of(handle);
    *device = given ? given->device : board_current();
    return OK;
}

API int cudaStreamIsCapturing(void *handle, int *status) {
    *status = capture_of(handle) ? CAPTURE_ACTIVE : CAPTURE_NONE;
    return OK;
}

API int cudaStreamGetCaptureInfo_v2(void *handle, int *status, unsigned long long *id,
                                    void **graph, const void **dependencies, size_t *count) {
    unsigned long long capture = capture_of(handle);
    *status = capture ? CAPTURE_ACTIVE : CAPTURE_NONE;
    if (id) *id = capture;
    if (graph) *graph = capture ? object_of(handle)->graph : NULL;
    if (dependencies) *dependencies = NULL;
    if (count) *count = 0;
    return OK;
}

API int cudaStreamGetCaptureInfo_v3(void *handle, int *status, unsigned long long *id,
                                    void **graph, const void **dependencies, const void **edges,
                                    size_t *count) {
    if (edges) *edges = NULL;
    return cudaStreamGetCaptureInfo_v2(handle, status, id, graph, dependencies, count);
}

API int cudaStreamGetCaptureInfo(void *handle, int *status, unsigned long long *id, void **graph,
                                 const void **dependencies, const void **edges, size_t *count) {
    return cudaStreamGetCaptureInfo_v3(handle, status, id, graph, dependencies, edges, count);
}

API int cudaGraphCreate(void **graph, unsigned flags UNUSED) {
    return object_new(graph, OPAQUE_BYTES);
}

API int cudaStreamBeginCaptureToGraph(void *handle, void *graph, const void *dependencies UNUSED,
                                      const void *edges UNUSED, size_t count UNUSED,
                                      int mode UNUSED) {
    stream *origin = object_of(handle);
    if (!origin || origin->capture) return runtime_error(CAPTURE_UNSUPPORTED);
    pthread_mutex_lock(&lock);
    origin->capture = ++capture_ids;
    origin->graph = graph;
    origin->joined = NULL;
    pthread_mutex_unlock(&lock);
    return OK;
}

API int cudaStreamBeginCapture(void *handle, int mode) {
    void *graph;
    if (cudaGraphCreate(&graph, 0)) return runtime_error(OUT_OF_MEMORY);
    return cudaStreamBeginCaptureToGraph(handle, graph, NULL, NULL, 0, mode);
}

API int cudaStreamEndCapture(void *handle, void **graph) {
    stream *origin = object_of(handle);
    if (!origin || !origin->capture) return runtime_error(CAPTURE_UNSUPPORTED);
    *graph = origin->graph;
    pthread_mutex_lock(&lock);
    for (stream *next = origin; next;) {
        stream *each = next;
        next = each->joined;
        each->capture = 0;
        each->graph = NULL;
        each->joined = NULL;
    }
    pthread_mutex_unlock(&lock);
    return OK;
}

API int cudaThreadExchangeStreamCaptureMode(int *mode) {
    static _Thread_local int current;
    int before = current;
    current = *mode;
    *mode = before;
    return OK;
}

API int cudaGraphInstantiate(void **executable, void *graph UNUSED,
                             unsigned long long flags UNUSED) {
    return object_new(executable, OPAQUE_BYTES);
}
API int cudaGraphInstantiateWithFlags(void **executable, void *graph, unsigned long long flags) {
    return cudaGraphInstantiate(executable, graph, flags);
}
DESTROYS(cudaGraphDestroy)
DESTROYS(cudaGraphExecDestroy)

/* One node: torch warns of a graph that has none. */
API int cudaGraphGetNodes(void *graph, void **nodes, size_t *count) {
    if (nodes && *count) *nodes = graph;
    *count = 1;
    return OK;
}

API int cudaGraphNodeGetDependencies(void *node UNUSED, void **dependencies UNUSED, void *third,
                                     size_t *fourth) {
    size_t *count = board.cuda_version < 13000 ? third : fourth; /* 13 has edges before it */
    if (count) *count = 0;
    return OK;
}

API int cudaUserObjectCreate(void **out) { return object_new(out, OPAQUE_BYTES); }

static double now_milliseconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e3 + (double)now.tv_nsec / 1e6;
}

API int cudaEventCreateWithFlags(void **out, unsigned flags UNUSED) {
    board_open_context(board_current());
    return object_new(out, sizeof(event));
}
API int cudaEventCreate(void **out) { return cudaEventCreateWithFlags(out, 0); }
API int cuEventCreate(void **out, unsigned flags) { return cudaEventCreateWithFlags(out, flags); }
DESTROYS(cudaEventDestroy)
DESTROYS(cuEventDestroy_v2)

API int cudaEventRecord(event *recorded, void *handle) {
    stream *origin = object_of(handle);
    recorded->milliseconds = now_milliseconds();
    recorded->capture = capture_of(handle);
    recorded->origin = recorded->capture ? origin : NULL;
    recorded->graph = recorded->capture ? origin->graph : NULL;
    return OK;
}
API int cudaEventRecordWithFlags(event *recorded, void *handle, unsigned flags UNUSED) {
    return cudaEventRecord(recorded, handle);
}
API int cuEventRecord(event *recorded, void *handle) { return cudaEventRecord(recorded, handle); }

API int cudaEventElapsedTime(float *milliseconds, const event *first, const event *second) {
    double elapsed = second->milliseconds - first->milliseconds;
    *milliseconds = elapsed > 1e-3 ? (float)elapsed : 1e-3f;
    return OK;
}
API int cudaEventElapsedTime_v2(float *milliseconds, const event *first, const event *second) {
    return cudaEventElapsedTime(milliseconds, first, second);
}
API int cuEventElapsedTime(float *milliseconds, const event *first, const event *second) {
    return cudaEventElapsedTime(milliseconds, first, second);
}

API int cudaStreamWaitEvent(void *handle, const event *awaited, unsigned flags UNUSED) {
    stream *waiting = object_of(handle);
    if (!waiting || !awaited || !awaited->capture) return OK;
    pthread_mutex_lock(&lock);
    stream *origin = awaited->origin;
    if (!waiting->capture && origin->capture == awaited->capture) {
        waiting->capture = awaited->capture;
        waiting->graph = awaited->graph;
        waiting->joined = origin->joined;
        origin->joined = waiting;
    }
    pthread_mutex_unlock(&lock);
    return OK;
}

API int cudaLaunchHostFunc(void *handle UNUSED, void (*function)(void *), void *argument) {
    function(argument);
    return OK;
}

API int cudaStreamAddCallback(void *handle, void (*function)(void *, int, void *),
                              void *argument, unsigned flags UNUSED) {
    function(handle, OK, argument);
    return OK;
}

/* Other processes' memory and events. */
API int cudaIpcGetMemHandle(void) { return runtime_error(NOT_SUPPORTED); }
API int cudaIpcOpenMemHandle(void) { return runtime_error(NOT_SUPPORTED); }
API int cudaIpcGetEventHandle(void *handle, const void *exported UNUSED) {
    memset(handle, 0, 64);
    return OK;
}
API int cudaIpcOpenEventHandle(void) { return runtime_error(NOT_SUPPORTED); }
