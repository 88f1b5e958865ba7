/* cuDNN: descriptors that remember what was set, and RNN weights.
 *
 * Workspaces are zero bytes: cuDNN's own choices depend on the card and are not known here.
 */
#define _GNU_SOURCE
#include "device.h"

#include <stdlib.h>
#include <string.h>

#define MAX_DIMS 8

typedef struct {
    void *stream;
} dnn_handle;

API int cudnnCreate(void **handle) {
    board_open_context(board_current());
    return object_new(handle, sizeof(dnn_handle));
}
DESTROYS(cudnnDestroy)
API int cudnnSetStream(dnn_handle *handle, void *stream) {
    handle->stream = stream;
    return OK;
}
API int cudnnGetStream(const dnn_handle *handle, void **stream) {
    *stream = handle->stream;
    return OK;
}

CREATES(cudnnCreateTensorDescriptor)
DESTROYS(cudnnDestroyTensorDescriptor)
CREATES(cudnnCreateFilterDescriptor)
DESTROYS(cudnnDestroyFilterDescriptor)
CREATES(cudnnCreateConvolutionDescriptor)
DESTROYS(cudnnDestroyConvolutionDescriptor)
CREATES(cudnnCreateActivationDescriptor)
DESTROYS(cudnnDestroyActivationDescriptor)
CREATES(cudnnCreateCTCLossDescriptor)
DESTROYS(cudnnDestroyCTCLossDescriptor)
CREATES(cudnnCreateDropoutDescriptor)
DESTROYS(cudnnDestroyDropoutDescriptor)
CREATES(cudnnCreatePoolingDescriptor)
DESTROYS(cudnnDestroyPoolingDescriptor)
CREATES(cudnnCreateSpatialTransformerDescriptor)
DESTROYS(cudnnDestroySpatialTransformerDescriptor)
CREATES(cudnnCreateRNNDescriptor)
DESTROYS(cudnnDestroyRNNDescriptor)
CREATES(cudnnCreateRNNDataDescriptor)
DESTROYS(cudnnDestroyRNNDataDescriptor)

/* A tensor's descriptor, and a filter's (which has a format and no strides). */
typedef struct {
    int type, format, count;
    int dims[MAX_DIMS], strides[MAX_DIMS];
} tensor_descriptor;

static void store(int *to, const int *from, int count) {
    for (int i = 0; i < count && i < MAX_DIMS; i++) to[i] = from[i];
}

static int smaller(int a, int b) { return a < b ? a : b; }

API int cudnnSetTensorNdDescriptor(tensor_descriptor *tensor, int type, int count,
                                   const int *dims, const int *strides) {
    tensor->type = type;
    tensor->count = count;
    store(tensor->dims, dims, count);
    store(tensor->strides, strides, count);
    return OK;
}
API int cudnnGetTensorNdDescriptor(const tensor_descriptor *tensor, int wanted, int *type,
                                   int *count, int *dims, int *strides) {
    *type = tensor->type;
    *count = tensor->count;
    store(dims, tensor->dims, smaller(wanted, tensor->count));
    store(strides, tensor->strides, smaller(wanted, tensor->count));
    return OK;
}
API int cudnnSetFilterNdDescriptor(tensor_descriptor *filter, int type, int format, int count,
                                   const int *dims) {
    filter->type = type;
    filter->format = format;
    filter->count = count;
    store(filter->dims, dims, count);
    return OK;
}
API int cudnnGetFilterNdDescriptor(const tensor_descriptor *filter, int wanted, int *type,
                                   int *format, int *count, int *dims) {
    *type = filter->type;
    *format = filter->format;
    *count = filter->count;
    store(dims, filter->dims, smaller(wanted, filter->count));
    return OK;
}

/* cudnnDataType_t */
static size_t element_bytes(int type) {
    switch (type) {
    case 1:
    case 10: return 8; /* double, int64 */
    case 2:
    case 9: return 2; /* half, bfloat16 */
    case 3:
    case 6:
    case 11: return 1; /* int8, uint8, boolean */
    default: return 4;
    }
}

/* A generator's states, 24 bytes for each thread that a device can hold, measured on an H200. */
API int cudnnDropoutGetStatesSize(void *handle UNUSED, size_t *size) {
    *size = (size_t)board.multiprocessors * (size_t)board.threads_multiprocessor * 24;
    return OK;
}

typedef struct {
    float probability;
} dropout;

API int cudnnSetDropoutDescriptor(dropout *drop, void *handle UNUSED, float probability) {
    drop->probability = probability;
    return OK;
}
API int cudnnRestoreDropoutDescriptor(dropout *drop, void *handle UNUSED, float probability) {
    drop->probability = probability;
    return OK;
}

/* cudnnConvolutionFwdAlgoPerf_t and its sisters */
typedef struct {
    int algorithm, status;
    float milliseconds;
    size_t workspace;
    int determinism, math_type, reserved[3];
} performance;

static int one_algorithm(int *count, performance *results) {
    *results = (performance){.algorithm = 1, .milliseconds = 1};
    *count = 1;
    return OK;
}

#define HEURISTIC(function)                                                               \
    API int function(void *handle UNUSED, void *a UNUSED, void *b UNUSED, void *c UNUSED, \
                     void *d UNUSED, int wanted UNUSED, int *count, performance *results) { \
        return one_algorithm(count, results);                                             \
    }
HEURISTIC(cudnnGetConvolutionForwardAlgorithm_v7)
HEURISTIC(cudnnGetConvolutionBackwardDataAlgorithm_v7)
HEURISTIC(cudnnGetConvolutionBackwardFilterAlgorithm_v7)

#define SEARCH(function)                                                                   \
    API int function(void *handle UNUSED, void *a UNUSED, void *x UNUSED, void *b UNUSED,  \
                     void *w UNUSED, void *c UNUSED, void *d UNUSED, void *y UNUSED,       \
                     int wanted UNUSED, int *count, performance *results) {                \
        return one_algorithm(count, results);                                              \
    }
SEARCH(cudnnFindConvolutionForwardAlgorithmEx)
SEARCH(cudnnFindConvolutionBackwardDataAlgorithmEx)
SEARCH(cudnnFindConvolutionBackwardFilterAlgorithmEx)

/* RNN. The weight space has the matrices of all layers first, then their biases. */
typedef struct {
    int mode, bias_mode, directions, type, input, hidden, projection, layers;
    bool has_dropout;
} rnn;

typedef struct {
    int type, layout, steps, batch, width;
} rnn_data;

enum { RNN_LSTM = 2, RNN_GRU = 3 };
enum { BIAS_NONE, BIAS_INPUT, BIAS_BOTH, BIAS_RECURRENT };

API int cudnnSetRNNDescriptor_v8(rnn *net, int algorithm UNUSED, int mode, int bias_mode,
                                 int bidirectional, int input_mode UNUSED, int type,
                                 int precision UNUSED, int math UNUSED, int input, int hidden,
                                 int projection, int layers, const dropout *drop) {
    *net = (rnn){mode, bias_mode, bidirectional ? 2 : 1, type, input, hidden, projection, layers,
                 drop && drop->probability > 0};
    return OK;
}

API int cudnnSetRNNDataDescriptor(rnn_data *data, int type, int layout, int steps, int batch,
                                  int width) {
    *data = (rnn_data){type, layout, steps, batch, width};
    return OK;
}

static int gates(const rnn *net) {
    return net->mode == RNN_LSTM ? 4 : net->mode == RNN_GRU ? 3 : 1;
}

static bool is_projected(const rnn *net) {
    return net->projection && net->projection != net->hidden;
}

static int output_width(const rnn *net) {
    return is_projected(net) ? net->projection : net->hidden;
}

typedef struct {
    int rows, columns; /* 0: there is none */
    size_t offset;     /* in elements */
} part;

/* Matrices of a layer: one per gate for the input, one per gate for the state, the projection. */
static int matrices(const rnn *net) { return 2 * gates(net) + is_projected(net); }

static part matrix_shape(const rnn *net, int layer, int id) {
    int below = layer < net->directions ? net->input : output_width(net) * net->directions;
    if (id == 2 * gates(net)) return (part){output_width(net), net->hidden, 0};
    return (part){net->hidden, id < gates(net) ? below : output_width(net), 0};
}

/* Return the matrix's place; its offset is the size of all matrices if there is none such. */
static part matrix_at(const rnn *net, int layer, int id) {
    size_t offset = 0;
    for (int l = 0; l < net->layers * net->directions; l++)
        for (int m = 0; m < matrices(net); m++) {
            part found = matrix_shape(net, l, m);
            found.offset = offset;
            if (l == layer && m == id) return found;
            offset += (size_t)found.rows * (size_t)found.columns;
        }
    return (part){0, 0, offset};
}

static int biases(const rnn *net) {
    return net->bias_mode == BIAS_NONE   ? 0
           : net->bias_mode == BIAS_BOTH ? 2 * gates(net)
                                         : gates(net);
}

static part bias_at(const rnn *net, int layer, int id) {
    int index = net->bias_mode == BIAS_RECURRENT ? id - gates(net) : id;
    if (index < 0 || index >= biases(net)) return (part){0, 0, 0};
    size_t before = (size_t)layer * (size_t)biases(net) + (size_t)index;
    size_t start = matrix_at(net, -1, -1).offset;
    return (part){net->hidden, 1, start + before * (size_t)net->hidden};
}

API int cudnnGetRNNWeightSpaceSize(void *handle UNUSED, const rnn *net, size_t *size) {
    size_t vectors = (size_t)(net->layers * net->directions * biases(net));
    size_t elements = matrix_at(net, -1, -1).offset + vectors * (size_t)net->hidden;
    *size = elements * element_bytes(net->type);
    return OK;
}

static void answer_part(const rnn *net, part found, char *space, tensor_descriptor *shape,
                        void **address) {
    if (address) *address = found.rows ? space + found.offset * element_bytes(net->type) : NULL;
    if (!shape || !found.rows) return;
    int area = found.rows * found.columns;
    *shape = (tensor_descriptor){net->type, 0, 3, {1, found.rows, found.columns},
                                 {area, found.columns, 1}};
}

/* Torch asks for the matrix and the bias in separate calls, with NULL for the other. */
API int cudnnGetRNNWeightParams(void *handle UNUSED, const rnn *net, int layer,
                                size_t size UNUSED, char *space, int id,
                                tensor_descriptor *matrix_descriptor, void **matrix,
                                tensor_descriptor *bias_descriptor, void **bias) {
    answer_part(net, matrix_at(net, layer, id), space, matrix_descriptor, matrix);
    answer_part(net, bias_at(net, layer, id), space, bias_descriptor, bias);
    return OK;
}

/* Gates and cells of every layer, outputs of all but the last, and a bit for each dropped element
 * between layers. Measured on an H200 with cuDNN 9.19: four LSTM in fp32 and bf16 take exactly the
 * reserve, and at most 0.5 MiB less than the workspace. Other kinds of layers are taken as alike. */
API int cudnnGetRNNTempSpaceSizes(void *handle UNUSED, const rnn *net, int is_training,
                                  const rnn_data *data, size_t *workspace, size_t *reserve) {
    size_t layers = (size_t)net->layers, hidden = (size_t)net->hidden;
    size_t row = (size_t)data->batch * hidden * (size_t)net->directions;
    size_t states = (size_t)data->steps * row, element = element_bytes(net->type);
    size_t kept = states * element * (layers * (size_t)(gates(net) + 2) - 1);
    size_t dropped = net->has_dropout ? (layers - 1) * states / 8 : 0;
    size_t weights = matrix_at(net, -1, -1).offset * element;
    size_t passing = 7 * states * element + 40 * row * element;
    if (workspace) *workspace = passing + weights + 16 * hidden * hidden + (16u << 20);
    if (reserve) *reserve = is_training ? kept + dropped + 256 : 0;
    return OK;
}
