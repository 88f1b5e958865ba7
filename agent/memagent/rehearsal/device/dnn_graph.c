/* cuDNN's graph API: descriptors are lists of attributes. */
#define _GNU_SOURCE
#include "device.h"

#include <stdlib.h>
#include <string.h>

/* The graph API. Heuristics offer one engine, without workspace and without shared memory. */
enum {
    HEURISTIC_RESULTS = 202,
    CONFIG_ENGINE = 300,
    CONFIG_INTERMEDIATES = 301,
    CONFIG_KNOBS = 302,
    CONFIG_WORKSPACE = 303,
    PLAN_WORKSPACE = 402,
    PLAN_JSON = 405,
    ENGINE_KNOBS = 1302,
    ENGINE_LAST_NOTE = 1305,
};
enum { TYPE_INT64 = 3, TYPE_INT32 = 23 };

typedef struct attribute {
    int name;
    size_t size;
    int64_t count;
    struct attribute *next;
    char value[];
} attribute;

typedef struct {
    int kind;
    attribute *attributes;
} graph_descriptor;

/* cudnnBackendAttributeType_t: handles, integers and pointers, fractions; enumerations. */
static size_t attribute_bytes(int type) {
    switch (type) {
    case 0:
    case 3:
    case 5:
    case 6:
    case 15: return 8;
    case 2:
    case 24: return 1;
    case 26: return 16;
    default: return 4;
    }
}

API int cudnnBackendCreateDescriptor(int kind, void **out) {
    if (object_new(out, sizeof(graph_descriptor))) return OUT_OF_MEMORY;
    ((graph_descriptor *)*out)->kind = kind;
    return OK;
}

API int cudnnBackendDestroyDescriptor(graph_descriptor *descriptor) {
    if (!descriptor) return OK;
    for (attribute *next, *each = descriptor->attributes; each; each = next) {
        next = each->next;
        free(each);
    }
    free(descriptor);
    return OK;
}

API int cudnnBackendSetAttribute(graph_descriptor *descriptor, int name, int type, int64_t count,
                                 const void *value) {
    attribute **place = &descriptor->attributes;
    while (*place && (*place)->name != name) place = &(*place)->next;
    attribute *old = *place;
    size_t size = count > 0 ? attribute_bytes(type) * (size_t)count : 0;
    attribute *fresh = malloc(sizeof *fresh + size);
    if (!fresh) return OUT_OF_MEMORY;
    *fresh = (attribute){name, size, count, old ? old->next : NULL};
    if (size && value) memcpy(fresh->value, value, size);
    *place = fresh;
    free(old);
    return OK;
}

static int answer_count(int64_t *count, int64_t value) {
    if (count) *count = value;
    return OK;
}

API int cudnnBackendGetAttribute(const graph_descriptor *descriptor, int name, int type,
                                 int64_t wanted, int64_t *count, void *out) {
    bool has_room = out && wanted > 0;
    if (name == HEURISTIC_RESULTS || name == CONFIG_ENGINE)
        return answer_count(count, 1); /* the caller has made the descriptor */
    if (name == CONFIG_INTERMEDIATES || name == CONFIG_KNOBS ||
        (name >= ENGINE_KNOBS && name <= ENGINE_LAST_NOTE))
        return answer_count(count, 0);
    if (name == CONFIG_WORKSPACE || name == PLAN_WORKSPACE) {
        if (has_room) *(int64_t *)out = 0;
        return answer_count(count, 1);
    }
    if (name == PLAN_JSON) {
        if (has_room) *(char *)out = 0;
        return answer_count(count, 0);
    }
    for (const attribute *each = descriptor->attributes; each; each = each->next) {
        if (each->name != name) continue;
        size_t room = has_room ? attribute_bytes(type) * (size_t)wanted : 0;
        if (room) memcpy(out, each->value, each->size < room ? each->size : room);
        return answer_count(count, each->count);
    }
    bool is_number = type == TYPE_INT64 || type == TYPE_INT32; /* such as the shared memory used */
    if (is_number && has_room) memset(out, 0, attribute_bytes(type));
    return answer_count(count, is_number && has_room);
}
