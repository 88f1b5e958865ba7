/* Copies and fills. Everything is done at once.
 *
 * What comes from the device is really copied; what goes to it only up to board.copy_limit, so
 * that weights cost no host memory.
 */
#define _GNU_SOURCE
#include "device.h"

#include <string.h>

static bool goes_to_device(const void *target, int kind) {
    memory_range range;
    if (kind != BY_ADDRESS) return kind == HOST_TO_DEVICE || kind == DEVICE_TO_DEVICE;
    return memory_lookup(target, &range) && memory_is_device(&range);
}

void memory_copy(void *target, const void *source, size_t size, int kind) {
    if (!size || target == source) return;
    if (size > board.copy_limit && goes_to_device(target, kind)) return;
    memmove(target, source, size);
}

void memory_fill(void *target, int value, size_t size) {
    if (size <= board.copy_limit) memset(target, value, size);
}

API int cudaMemcpy(void *target, const void *source, size_t size, int kind) {
    memory_copy(target, source, size, kind);
    return OK;
}

API int cudaMemcpyAsync(void *target, const void *source, size_t size, int kind,
                        void *stream UNUSED) {
    memory_copy(target, source, size, kind);
    return OK;
}

API int cudaMemcpyPeerAsync(void *target, int to UNUSED, const void *source, int from UNUSED,
                            size_t size, void *stream UNUSED) {
    memory_copy(target, source, size, DEVICE_TO_DEVICE);
    return OK;
}

API int cudaMemcpy2DAsync(void *target, size_t target_pitch, const void *source,
                          size_t source_pitch, size_t width, size_t height, int kind,
                          void *stream UNUSED) {
    if (width * height > board.copy_limit && goes_to_device(target, kind)) return OK;
    for (size_t row = 0; row < height; row++)
        memmove((char *)target + row * target_pitch, (const char *)source + row * source_pitch,
                width);
    return OK;
}

API int cudaMemset(void *target, int value, size_t size) {
    memory_fill(target, value, size);
    return OK;
}

API int cudaMemsetAsync(void *target, int value, size_t size, void *stream UNUSED) {
    memory_fill(target, value, size);
    return OK;
}
