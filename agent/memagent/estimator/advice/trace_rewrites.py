"""Rewrites of a trace: changes that keep the step's program and alter the sizes of its events. No
torch.

An event's size follows its storage: a storage is freed with the bytes that it was allocated with.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from memagent.estimator.advice.script_profile import block_number, block_path, weight_events
from memagent.estimator.formula.precision import quantised_bytes

if TYPE_CHECKING:
    from memagent.estimator.trace.events import MemoryEvent, Trace

_LOSS_CHUNKS = 8
_MIN_QUANTISED_VALUES = 4096
"""bitsandbytes keeps the states of smaller parameters in fp32 (`min_8bit_size`)."""
_MIN_VOCABULARY = 1000
_BUCKETS_BYTES = 2 * 25 * 2**20
_FIRST_ADDED_STORAGE = -1000
"""Storages from here down are those that a rewrite adds."""


def with_eight_bit_states(trace: Trace) -> Trace:
    """Store each state's value in one byte, with an fp32 scale for 256 of them; no temporaries.

    Source: bitsandbytes/optim/optimizer.py.
    """

    def size(event: MemoryEvent) -> int:
        values = math.prod(event.shape)
        if event.component == "optimizer_state" and values >= _MIN_QUANTISED_VALUES:
            return round(values * (1 + 4 / 256))
        return 0 if _is_temporary(event) else event.size_bytes

    return _resized(trace, size)


def without_states(trace: Trace) -> Trace:
    """Move the optimizer's states and its step to another device."""
    return _without(trace, ("optimizer_state",))


def without_temporaries(trace: Trace) -> Trace:
    """Step the optimizer without temporaries, as fused kernels do."""
    return _without(trace, ())


def with_one_parameter_at_a_time(trace: Trace) -> Trace:
    """Step the optimizer in a loop: copy the largest parameter twice instead of all once."""
    largest = max((event.size_bytes for event in weight_events(trace)), default=0)
    copies = sum(
        event.size_bytes
        for event in trace.events
        if event.step == trace.steps - 1 and event.kind == "alloc" and _is_temporary(event)
    )
    ratio = min(1.0, 2 * largest / copies) if copies else 1.0

    def size(event: MemoryEvent) -> int:
        return int(ratio * event.size_bytes) if _is_temporary(event) else event.size_bytes

    return _resized(trace, size)


def without_scores(trace: Trace) -> Trace:
    """Remove attention's scores: tensors of the size of its softmax, and as square."""
    squares = {_square(event) for event in trace.events if event.op == "aten::_softmax"} - {None}

    def size(event: MemoryEvent) -> int:
        is_score = event.component in ("activations", "workspace") and _square(event) in squares
        return 0 if is_score else event.size_bytes

    return _resized(trace, size)


def holds_scores(trace: Trace) -> bool:
    """Return True if the step materialises attention's scores."""
    return any(
        event.op == "aten::_softmax" and _square(event) is not None for event in trace.events
    )


def _square(event: MemoryEvent) -> tuple[int, int] | None:
    """Return the number of values and the side of the square, if the tensor may be scores."""
    shape = event.shape
    if len(shape) < 3 or shape[-1] != shape[-2] or shape[-1] < 2:
        return None
    return math.prod(shape), shape[-1]


def with_chunked_logits(trace: Trace) -> Trace:
    """Compute logits and the loss for a part of the rows at a time."""
    shape = logits_shape(trace)
    if shape is None:
        return trace
    rows, vocabulary = shape

    def size(event: MemoryEvent) -> int:
        is_logits = (
            event.component in ("activations", "workspace")
            and event.shape[-1:] == (vocabulary,)
            and 2 * math.prod(event.shape) > rows * vocabulary
        )
        return event.size_bytes // _LOSS_CHUNKS if is_logits else event.size_bytes

    return _resized(trace, size)


def logits_shape(trace: Trace) -> tuple[int, int] | None:
    """Return rows and vocabulary of the largest cross-entropy; None without a large vocabulary."""
    shapes = [
        event.shape
        for event in trace.events
        if event.op == "aten::_log_softmax" and len(event.shape) == 2
    ]
    rows, vocabulary = max(shapes, key=math.prod, default=(0, 0))
    return (rows, vocabulary) if vocabulary >= _MIN_VOCABULARY else None


def sharded(trace: Trace, *, stage: int, ranks: int) -> Trace:
    """Divide as ZeRO does: states (1), gradients too (2), parameters too (3).

    The buckets or gathered blocks of the stage are added.
    """
    divided = ("optimizer_state", "gradients", "parameters")[:stage]

    def size(event: MemoryEvent) -> int:
        is_divided = event.component in divided or _is_temporary(event)
        return event.size_bytes // ranks if is_divided else event.size_bytes

    added = {1: 0, 2: _BUCKETS_BYTES, 3: _gathered_bytes(trace)}[stage]
    return _with_added(_resized(trace, size), added)


def on_the_host(trace: Trace) -> Trace:
    """Move parameters, gradients and states to the host, except for the gathered blocks."""
    offloaded = _without(trace, ("optimizer_state", "gradients", "parameters"))
    return _with_added(offloaded, _gathered_bytes(trace))


def _gathered_bytes(trace: Trace) -> int:
    """Return sharded parameters while they are whole.

    That is two blocks and one block's gradients, or the largest part outside of blocks.
    """
    weights = weight_events(trace)
    path = block_path(weights)
    blocks: Counter[str | None] = Counter()
    for event in weights:
        blocks[block_number(event, path)] += event.size_bytes
    outside = blocks.pop(None, 0)
    return max(3 * max(blocks.values(), default=0), outside)


def with_nf4_weights(trace: Trace) -> Trace:
    """Quantise the blocks' frozen matrices to NF4; the largest is dequantised for its product."""
    weights = weight_events(trace)
    path = block_path(weights)
    quantised = {
        event.storage: event.size_bytes
        for event in weights
        if block_number(event, path) is not None
        and len(event.shape) == 2
        and "adapter_" not in event.module
    }
    value_bytes = quantised_bytes("nf4-double")

    def size(event: MemoryEvent) -> int:
        if event.storage in quantised:
            return round(math.prod(event.shape) * value_bytes)
        return event.size_bytes

    return _with_added(_resized(trace, size), max(quantised.values(), default=0))


def _without(trace: Trace, components: tuple[str, ...]) -> Trace:
    """Remove these components and the optimizer's temporaries."""

    def size(event: MemoryEvent) -> int:
        return 0 if event.component in components or _is_temporary(event) else event.size_bytes

    return _resized(trace, size)


def _resized(trace: Trace, size: Callable[[MemoryEvent], int]) -> Trace:
    """Return the trace with the `size` of each storage's allocation."""
    sizes: dict[int, int] = {}

    def events() -> Iterator[MemoryEvent]:
        for event in trace.events:
            if event.kind == "alloc":
                sizes[event.storage] = size(event)
            new_size = sizes[event.storage]
            is_same = new_size == event.size_bytes
            yield event if is_same else replace(event, size_bytes=new_size)

    return replace(trace, events=tuple(events()))


def _with_added(trace: Trace, size_bytes: int) -> Trace:
    """Return the trace with more bytes held from the first forward on."""
    first = next((at for at, event in enumerate(trace.events) if event.phase != "data"), None)
    if first is None or not size_bytes:
        return trace
    lowest = min(event.storage for event in trace.events)
    added = replace(
        trace.events[first],
        kind="alloc",
        # below all others, since another rewrite may have added one already
        storage=min(_FIRST_ADDED_STORAGE, lowest - 1),
        size_bytes=size_bytes,
        component="workspace",
        shape=(),
        dtype="",
        module="",
        source="",
        op="",
    )
    return replace(trace, events=(*trace.events[:first], added, *trace.events[first:]))


def _is_temporary(event: MemoryEvent) -> bool:
    return event.phase == "optimizer" and event.component == "workspace"
