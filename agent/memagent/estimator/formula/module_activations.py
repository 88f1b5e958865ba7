"""Activations by module: bytes that autograd saves, from the module tree and the inputs' shapes.

Modules are walked in the order of their definition, which is nearly always that of their use. Each
kind saves what torch's derivatives.yaml lists. A Linear, a LayerNorm, a GELU and a convolution save
their input, a ReLU its output, attention q, k, v and its output. A tensor that two neighbours save
is one storage and counts once. Operations outside of modules (functional activations between two
Linears, the loss) are inferred if they are usual.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

from memagent.components import modules_of, named_modules_of, parameters_of
from memagent.estimator.input_specs import TensorSpec

_SAVES_INPUT = (
    "GELU",
    "SiLU",
    "Mish",
    "Softplus",
    "Hardswish",
    "ELU",
    "LeakyReLU",
    "NewGELUActivation",
    "GELUActivation",
)
_SAVES_OUTPUT = ("ReLU", "Tanh", "Sigmoid", "Softmax", "ReLU6", "Hardtanh")
_NORMS = ("LayerNorm", "RMSNorm", "LlamaRMSNorm", "T5LayerNorm")
_SAVES_NOTHING = (
    "Identity",
    "NonDynamicallyQuantizableLinear",
    "Flatten",
    "Unflatten",
    "ModuleList",
    "Upsample",
    "PixelShuffle",
)
_QUERY_KEY_VALUE = ("q_proj", "k_proj", "v_proj", "query", "key", "value", "q", "k", "v")
_ELEMENT_BYTES = {"bfloat16": 2, "float16": 2, "float64": 8}
_MIN_VOCABULARY = 200
"""The outputs of a last Linear that are taken for logits over a vocabulary or classes."""


@dataclass
class _ModuleWalk:
    """State of the walk: positions (batch x sequence), image size and width of the last output.

    `saved_width` is the width of the tensor that the last module saved, to count it once; `outputs`
    that of the last Linear's output.
    """

    positions: int
    image: tuple[int, ...] = ()
    width: int = 0
    values: int = 0
    saved_width: int = 0
    outputs: int = 0
    mask_bytes: int = 0
    activation_due: bool = False
    unknown: set[str] = field(default_factory=set)

    @property
    def size(self) -> int:
        return self.positions * max(1, self.width) * max(1, prod(self.image))

    def save(self) -> None:
        """Count the current tensor, unless the last module saved it already."""
        if self.saved_width != self.width or self.width == 0:
            self.values += self.size
        self.saved_width = 0

    def visit(self, name: str, module: Any) -> None:
        kind = _kind(module)
        try:
            self._count(kind, name, module)
        except (AttributeError, TypeError, ValueError):
            # a class of the script's that has the name of one of torch's, and other attributes
            self.unknown.add(kind)

    def _count(self, kind: str, name: str, module: Any) -> None:
        if kind in ("Linear", "Conv1D"):
            self._visit_linear(name, module)
        elif kind.startswith("Conv") and self.image:
            self._visit_convolution(module)
        elif kind.startswith("BatchNorm") or kind in ("GroupNorm", "InstanceNorm2d"):
            self.save()
        elif kind.endswith(("MaxPool2d", "AvgPool2d")) and self.image:
            self._visit_pool(module, has_indexes=kind.endswith("MaxPool2d"))
        elif kind in _NORMS:
            self.width = self.width or prod(getattr(module, "normalized_shape", (0,)))
            self.save()
        elif kind in _SAVES_INPUT:
            self.save()
            self.activation_due = False
        elif kind in _SAVES_OUTPUT:
            self.save()
            self.saved_width = self.width
            self.activation_due = False
        elif kind == "Embedding":
            self.width = int(module.embedding_dim)
        elif kind == "MultiheadAttention":
            self._visit_attention(int(module.embed_dim))
        elif kind.startswith("Dropout"):
            if module.p > 0:
                self.mask_bytes += self.size * 4
        elif kind not in _SAVES_NOTHING and parameters_of([module], ()):
            self.unknown.add(kind)

    def _visit_linear(self, name: str, module: Any) -> None:
        outputs, inputs = map(int, module.weight.shape)
        if _kind(module) == "Conv1D":  # GPT-2's holds (in, out)
            inputs, outputs = outputs, inputs
        else:
            self.outputs = outputs
        if self.image and inputs == self.width * prod(self.image):  # flattened
            self.image = ()
            self.width = inputs
        last_name = name.rpartition(".")[2]
        is_fused_qkv = outputs == 3 * inputs
        if self.activation_due and inputs == self.width:
            # a functional activation in between saves its input
            self.values += self.positions * inputs
        if last_name in _QUERY_KEY_VALUE:
            if last_name in ("q_proj", "query", "q"):
                # the input of all three, and attention's output
                self.values += self.positions * (inputs + outputs)
            self.values += self.positions * outputs
        else:
            if self.saved_width != inputs:
                self.values += self.positions * inputs
            if is_fused_qkv:
                self.values += self.positions * 4 * inputs  # q, k, v and attention's output
        self.activation_due = outputs > inputs and not is_fused_qkv
        self.width = inputs if is_fused_qkv else outputs
        self.saved_width = 0

    def _visit_attention(self, width: int) -> None:
        self.values += self.positions * 5 * width  # input, q, k, v, output
        self.width = width
        self.saved_width = 0
        self.save()

    def _visit_convolution(self, module: Any) -> None:
        if self.saved_width != self.width:
            self.values += self.size
        self.image = tuple(_convolved(module, self.image))
        self.width = int(module.out_channels)
        self.saved_width = 0

    def _visit_pool(self, module: Any, *, has_indexes: bool) -> None:
        if hasattr(module, "output_size"):
            sizes = zip(_sizes(module.output_size), self.image, strict=False)
            self.image = tuple(int(size or current) for size, current in sizes)
        else:
            self.save()
            strides = zip(self.image, _sizes(module.stride or module.kernel_size), strict=False)
            self.image = tuple(size // stride for size, stride in strides)
        self.mask_bytes += 8 * self.size if has_indexes else 0
        self.saved_width = 0

    def visit_loss(self) -> None:
        """Count logits and cross-entropy's log-softmax of the same size."""
        if self.outputs >= _MIN_VOCABULARY:
            self.values += 2 * self.positions * self.outputs


def saved_bytes(
    models: Sequence[Any], inputs: tuple[TensorSpec, ...]
) -> tuple[int, dict[str, Any]]:
    """Return bytes saved by one forward of the models on `inputs`, and notes on the assumptions."""
    first = next(iter(parameters_of(models, ())), None)
    dtype = "" if first is None else str(first.dtype).removeprefix("torch.")
    walk = _start(inputs[0])
    for model in models:
        for name, module in named_modules_of(model).items():
            kind = _kind(module)
            if kind == "MultiheadAttention" or not any(modules_of([module])[1:]):
                walk.visit(name, module)
    walk.visit_loss()
    notes: dict[str, Any] = {
        "activations": "by module and input shape; checkpointing and autocast are not included"
    }
    if walk.unknown:
        notes["modules_left_out"] = sorted(walk.unknown)
    return walk.values * _ELEMENT_BYTES.get(dtype, 4) + walk.mask_bytes, notes


def _start(first: TensorSpec) -> _ModuleWalk:
    shape, dtype = first
    if dtype.startswith(("int", "uint")):
        return _ModuleWalk(positions=prod(shape))
    if len(shape) >= 4:
        return _ModuleWalk(positions=shape[0], image=shape[2:], width=shape[1])
    return _ModuleWalk(positions=prod(shape[:-1]), width=shape[-1] if shape else 1)


def _kind(module: Any) -> str:
    """Return the name of the module's class, or of the class of torch that it extends."""
    names = (
        cls.__name__
        for cls in type(module).__mro__
        if cls.__module__.startswith("torch.nn.modules.")
    )
    name = next(names, "Module")
    return type(module).__name__ if name == "Module" else name


def _convolved(module: Any, image: Sequence[int]) -> Iterator[int]:
    """Yield the sizes of a convolution's output (torch/nn/modules/conv.py)."""
    if module.padding == "same":
        yield from image
        return
    pads = [0] * len(image) if module.padding == "valid" else module.padding
    for size, pad, kernel, dilation, stride, extra in zip(
        image,
        pads,
        module.kernel_size,
        module.dilation,
        module.stride,
        module.output_padding,
        strict=False,
    ):
        span = dilation * (kernel - 1) + 1
        if module.transposed:
            yield (size - 1) * stride - 2 * pad + span + extra
        else:
            yield (size + 2 * pad - span) // stride + 1


def _sizes(value: Any) -> tuple[int, ...]:
    """Return one size for each dimension."""
    return (value, value, value) if isinstance(value, int) else tuple(value)
