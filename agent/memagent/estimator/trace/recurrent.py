"""An LSTM as cuDNN runs it: one kernel for all steps and layers.

1. The output and the last states are tensors of the program. A reserve is kept for backward. A
   workspace lives while a kernel runs, once in forward and twice in backward.
2. The reserve holds gates and cells of each layer, outputs of all but the last, and a bit for each
   element that dropout may drop between layers.
3. With dropout, the states of its random numbers stay until the process ends.
4. Under autocast the weights are copied to one buffer of the lower type.

Sizes were measured on an H200 with cuDNN 9.19, by the histories of four LSTM in fp32 and bf16: the
reserve is exact, and the workspace within 0.5 MiB.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

_GATES = 4
_GENERATOR_BYTES = 24
"""For each thread of the device."""
_THREADS = 108 * 2048
"""An A100's, as in `kernels`."""
_MIB = 2**20

Tensors = tuple[torch.Tensor, ...]


def reserve_bytes(
    steps: int, batch: int, width: int, layers: int, element: int, *, dropout: bool
) -> int:
    """Return what backward needs; `width` is that of all directions."""
    states = steps * batch * width
    needed = states * element * (layers * (_GATES + 2) - 1)
    return needed + 256 + (states * (layers - 1) // 8 if dropout else 0)


def workspace_bytes(
    steps: int, batch: int, width: int, hidden: int, weights: int, element: int
) -> int:
    """Return what a kernel needs while it runs; `weights` is their number."""
    passing = 7 * steps * batch * width + 40 * batch * width + weights
    return passing * element + 16 * hidden * hidden + 16 * _MIB


class _Recurrence(torch.autograd.Function):
    """Allocate what cuDNN's forward and backward do. Values are those of empty tensors."""

    @staticmethod
    def forward(
        context: Any, hidden: int, layers: int, dropout: bool, flat: Any, *tensors: torch.Tensor
    ) -> Tensors:
        values, state, cell, *weights = tensors
        steps, batch, _ = values.shape
        width, element = hidden * state.shape[0] // layers, values.element_size()
        sizes = steps, batch, width
        count = sum(weight.numel() for weight in weights)
        context.workspace = workspace_bytes(*sizes, hidden, count, element)
        reserve = reserve_bytes(*sizes, layers, element, dropout=dropout)
        output = values.new_empty(sizes)
        last = state.new_empty(state.shape), cell.new_empty(cell.shape)
        workspace = values.new_empty(context.workspace, dtype=torch.uint8)
        context.reserve = values.new_empty(reserve, dtype=torch.uint8)
        del workspace
        context.flat = flat
        context.save_for_backward(values, state, cell, output, *weights)
        return output, *last

    @staticmethod
    def backward(context: Any, *_: torch.Tensor) -> tuple[Any, ...]:
        values, state, cell, _output, *weights = context.saved_tensors
        inputs = [tensor.new_empty(tensor.shape) for tensor in (values, state, cell)]
        workspace = values.new_empty(context.workspace, dtype=torch.uint8)
        del workspace
        count = sum(weight.numel() for weight in weights)
        buffer = values.new_empty(count)
        workspace = values.new_empty(context.workspace, dtype=torch.uint8)
        del workspace
        parts = buffer.split([weight.numel() for weight in weights])
        own = [
            part.view(weight.shape).to(weight.dtype)
            for part, weight in zip(parts, weights, strict=True)
        ]
        return (None, None, None, None, *inputs, *own)


def replace_lstm(fallback: Callable[..., Any]) -> Callable[..., Any]:
    """Return `torch._VF.lstm` as cuDNN runs it; `fallback` takes what is not covered here."""
    generators: list[torch.Tensor] = []

    def lstm(*arguments: Any) -> Any:
        if len(arguments) != 9 or isinstance(arguments[3], Sequence):
            return fallback(*arguments)  # packed sequences
        values, states, weights, has_biases, layers, dropout, training, two_way, first = arguments
        hidden = states[0].shape[-1]
        is_covered = values.is_floating_point() and states[1].shape[-1] == hidden
        if not is_covered or len(weights) != layers * (1 + two_way) * (4 if has_biases else 2):
            return fallback(*arguments)
        return _run(values, states, weights, layers, dropout if training else 0.0, first)

    def _run(
        values: torch.Tensor,
        states: Sequence[torch.Tensor],
        weights: Sequence[torch.Tensor],
        layers: int,
        dropout: float,
        batch_first: bool,
    ) -> Tensors:
        hidden, flat = states[0].shape[-1], None
        if torch.is_autocast_enabled("cuda"):
            lower = torch.get_autocast_dtype("cuda")
            flat = values.new_empty(sum(weight.numel() for weight in weights), dtype=lower)
            values, states = values.to(lower), [state.to(lower) for state in states]
        if dropout and not generators:
            count = _GENERATOR_BYTES * _THREADS
            generators.append(values.new_empty(count, dtype=torch.uint8))
        if batch_first:
            values = values.transpose(0, 1)
        output, *last = _Recurrence.apply(  # type: ignore[no-untyped-call]
            hidden, layers, dropout > 0, flat, values.contiguous(), *states, *weights
        )
        return (output.transpose(0, 1) if batch_first else output, *last)

    return lstm
