/* cuFFT, cuSPARSELt and CUPTI: what must return a value. */
#define _GNU_SOURCE
#include "device.h"

#include <stdlib.h>

#define CUPTI_MAX_LIMIT_REACHED 12 /* no more records */

API int cufftCreate(int *plan) {
    static int plans;
    *plan = __atomic_add_fetch(&plans, 1, __ATOMIC_RELAXED);
    return OK;
}

API int cufftXtMakePlanMany(int plan UNUSED, int rank UNUSED, void *n UNUSED, void *in UNUSED,
                            long long in_stride UNUSED, long long in_distance UNUSED,
                            int in_type UNUSED, void *out UNUSED, long long out_stride UNUSED,
                            long long out_distance UNUSED, int out_type UNUSED,
                            long long batch UNUSED, size_t *workspace) {
    *workspace = 0;
    return OK;
}

API int cusparseLtMatmulGetWorkspace(void *handle UNUSED, void *plan UNUSED, size_t *size) {
    *size = 0;
    return OK;
}

API int cusparseLtSpMMACompressedSize2(void *handle UNUSED, void *matrix UNUSED, size_t *size,
                                       size_t *buffer) {
    *size = *buffer = 0;
    return OK;
}

API int cuptiSubscribe(void **subscriber) { return object_new(subscriber, OPAQUE_BYTES); }
API int cuptiActivityGetNextRecord(void) { return CUPTI_MAX_LIMIT_REACHED; }

API int cuptiGetCallbackName(int domain UNUSED, unsigned id UNUSED, const char **name) {
    *name = "unknown";
    return OK;
}

API int cuptiActivityPopExternalCorrelationId(int kind UNUSED, uint64_t *id) {
    if (id) *id = 0;
    return OK;
}

API int cuptiActivityGetNumDroppedRecords(void *context UNUSED, unsigned stream UNUSED,
                                          size_t *count) {
    *count = 0;
    return OK;
}

API int cuptiGetTimestamp(uint64_t *nanoseconds) {
    *nanoseconds = 0;
    return OK;
}
