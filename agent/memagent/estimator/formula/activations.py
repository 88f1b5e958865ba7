"""What autograd saves for backward, reckoned from the module tree and the shapes of the inputs.

The modules are walked in the order of their definition, which is nearly always that of their use. Each kind saves what torch's
derivatives.yaml says it needs (a Linear its input, a LayerNorm its input, GELU its input, ReLU its output, attention q, k, v and its
output, a convolution its input); a tensor that two neighbours save is one storage and counts once. What runs outside of modules
(functional activations between two Linears, the loss) is inferred where it is usual.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

Shape = tuple[tuple[int, ...], str]

_KEEPS_INPUT = (
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
_KEEPS_OUTPUT = ("ReLU", "Tanh", "Sigmoid", "Softmax", "ReLU6", "Hardtanh")
_NORMS = ("LayerNorm", "RMSNorm", "LlamaRMSNorm", "T5LayerNorm")
_FREE = (
    "Identity",
    "NonDynamicallyQuantizableLinear",
    "Flatten",
    "Unflatten",
    "ModuleList",
    "Upsample",
    "PixelShuffle",
)
_QUERY_KEY_VALUE = ("q_proj", "k_proj", "v_proj", "query", "key", "value", "q", "k", "v")
_ELEMENT = {"bfloat16": 2, "float16": 2, "float64": 8}
_VOCABULARY = 200
"""A last Linear with this many outputs or more is taken for logits over a vocabulary or classes."""


@dataclass
class _Walk:
    """Where the walk is: positions (batch x sequence), image size, width of the last output."""

    positions: int
    batch: int
    image: tuple[int, ...] = ()
    width: int = 0
    values: int = 0
    saved_width: int = 0
    """Width of the tensor that the last module has already saved, to count it once."""
    mask_bytes: int = 0
    activation_due: bool = False
    unknown: set[str] = field(default_factory=set)


def saved_bytes(models: Sequence[Any], inputs: tuple[Shape, ...]) -> tuple[int, dict[str, Any]]:
    """Bytes saved for one forward of the models on `inputs`, and notes on what was taken for granted."""
    element = next(
        (
            _ELEMENT.get(str(p.dtype).removeprefix("torch."), 4)
            for model in models
            for p in model.parameters()
        ),
        4,
    )
    walk = _start(inputs)
    last = None
    for model in models:
        for name, module in model.named_modules():
            if (
                not any(True for _ in module.children())
                or type(module).__name__ == "MultiheadAttention"
            ):
                _visit(walk, name, module)
                last = module if type(module).__name__ == "Linear" else last
    _loss(walk, last)
    notes: dict[str, Any] = {
        "activations": "by module and input shape; checkpointing and autocast are not seen"
    }
    if walk.unknown:
        notes["modules_left_out"] = sorted(walk.unknown)
    return walk.values * element + walk.mask_bytes, notes


def _start(inputs: tuple[Shape, ...]) -> _Walk:
    shape, dtype = inputs[0]
    if dtype.startswith(("int", "uint")):
        return _Walk(positions=prod(shape), batch=shape[0] if shape else 1)
    if len(shape) >= 4:
        return _Walk(positions=shape[0], batch=shape[0], image=shape[2:], width=shape[1])
    return _Walk(
        positions=prod(shape[:-1]), batch=shape[0] if shape else 1, width=shape[-1] if shape else 1
    )


def _visit(walk: _Walk, name: str, module: Any) -> None:
    kind = type(module).__name__
    if kind in ("Linear", "Conv1D"):
        _linear(walk, name, module)
    elif kind.startswith("Conv") and walk.image:
        _convolution(walk, module)
    elif kind.startswith("BatchNorm") or kind in ("GroupNorm", "InstanceNorm2d"):
        _keep(walk, walk.width)
    elif kind.endswith(("MaxPool2d", "AvgPool2d")) and walk.image:
        _pool(walk, module, indexes=kind.endswith("MaxPool2d"))
    elif kind in _NORMS:
        walk.width = walk.width or prod(getattr(module, "normalized_shape", (0,)))
        _keep(walk, walk.width)
    elif kind in _KEEPS_INPUT:
        _keep(walk, walk.width)
        walk.activation_due = False
    elif kind in _KEEPS_OUTPUT:
        _keep(walk, walk.width)
        walk.saved_width, walk.activation_due = walk.width, False
    elif kind == "Embedding":
        walk.width = int(module.embedding_dim)
    elif kind == "MultiheadAttention":
        _attention(walk, int(module.embed_dim))
        _keep(walk, int(module.embed_dim))
    elif kind.startswith("Dropout"):
        if module.p > 0:
            walk.mask_bytes += _size(walk) * 4
    elif kind not in _FREE and any(True for _ in module.parameters()):
        walk.unknown.add(kind)


def _linear(walk: _Walk, name: str, module: Any) -> None:
    weight = module.weight.shape
    transposed = type(module).__name__ == "Conv1D"
    into, out = (int(weight[0]), int(weight[1])) if transposed else (int(weight[1]), int(weight[0]))
    if walk.image and into == walk.width * prod(walk.image):  # flattened
        walk.image, walk.width = (), into
    last_name = name.rpartition(".")[2]
    if walk.activation_due and into == walk.width:
        walk.values += walk.positions * into  # a functional activation in between keeps its input
    if last_name in _QUERY_KEY_VALUE:
        if last_name in ("q_proj", "query", "q"):
            walk.values += walk.positions * into
            walk.values += walk.positions * out  # the attention's output
        walk.values += walk.positions * out
    else:
        if walk.saved_width != into:
            walk.values += walk.positions * into
        if out == 3 * into:
            walk.values += walk.positions * 4 * into  # q, k, v and the attention's output
    walk.activation_due = out > into and out != 3 * into
    walk.width, walk.saved_width = (into if out == 3 * into else out), 0


def _attention(walk: _Walk, width: int) -> None:
    walk.values += walk.positions * 5 * width  # input, q, k, v, output
    walk.width, walk.saved_width = width, 0


def _convolution(walk: _Walk, module: Any) -> None:
    if walk.saved_width != walk.width:
        walk.values += _size(walk)
    walk.image = tuple(
        (size + 2 * pad - dilation * (kernel - 1) - 1) // stride + 1
        for size, pad, dilation, kernel, stride in zip(
            walk.image,
            _pair(module.padding),
            module.dilation,
            module.kernel_size,
            module.stride,
            strict=False,
        )
    )
    walk.width, walk.saved_width = int(module.out_channels), 0


def _pool(walk: _Walk, module: Any, *, indexes: bool) -> None:
    if hasattr(module, "output_size"):
        sizes = _pair(module.output_size)
        walk.image = tuple(int(size or have) for size, have in zip(sizes, walk.image, strict=False))
    else:
        _keep(walk, walk.width)
        steps = _pair(module.stride or module.kernel_size)
        walk.image = tuple(size // step for size, step in zip(walk.image, steps, strict=False))
    walk.mask_bytes += 8 * _size(walk) if indexes else 0
    walk.saved_width = 0


def _loss(walk: _Walk, last: Any) -> None:
    """Logits, and what cross-entropy keeps of them: log-softmax, the same size again."""
    if last is None:
        return
    out = int(last.weight.shape[0])
    if out >= _VOCABULARY:
        walk.values += 2 * walk.positions * out


def _keep(walk: _Walk, width: int) -> None:
    if walk.saved_width != width or width == 0:
        walk.values += _size(walk)
    walk.saved_width = 0


def _size(walk: _Walk) -> int:
    return walk.positions * max(1, walk.width) * max(1, prod(walk.image))


def _pair(value: Any) -> tuple[int, ...]:
    if isinstance(value, int):
        return (value, value, value)
    return (0, 0, 0) if isinstance(value, str) else tuple(value)
