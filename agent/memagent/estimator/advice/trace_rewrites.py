"""Changes that leave the step's program as it is: the events of its trace, with other sizes. Traces in, traces out; no torch.

An event's size follows its storage: what is born with other bytes dies with them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from memagent.estimator.advice.script_facts import block_of, block_path, in_block
from memagent.estimator.formula.precision import quantised_bytes

Rewrite = Callable[[Any], Any]
"""From a `Trace` to another."""

CHUNKS = 8
_SMALLEST_QUANTISED = 4096
"""bitsandbytes keeps the states of smaller parameters in fp32 (`min_8bit_size`)."""
_LARGE_VOCABULARY = 1000
_BUCKET_BYTES = 2 * 25 * 2**20
_HELD_STORAGE = -1000
"""Storages from here down are those that a rewrite adds."""


def eight_bit_states(trace: Any) -> Any:
    """Each state's value in one byte, and an fp32 scale to each 256 of them (bitsandbytes/optim/optimizer.py); its step copies nothing."""

    def size(event: Any) -> int:
        values: int = math.prod(event.shape)
        if event.component == "optimizer_state" and values >= _SMALLEST_QUANTISED:
            return round(values * (1 + 4 / 256))
        return 0 if _is_temporary(event) else int(event.size_bytes)

    return resized(trace, size)


def without_states(trace: Any) -> Any:
    """The optimizer's states are elsewhere, and it steps there."""
    return resized(
        trace,
        lambda event: (
            0
            if event.component == "optimizer_state" or _is_temporary(event)
            else int(event.size_bytes)
        ),
    )


def without_temporaries(trace: Any) -> Any:
    """The optimizer's step allocates nothing for a moment, as fused kernels don't."""
    return resized(trace, lambda event: 0 if _is_temporary(event) else event.size_bytes)


def one_parameter_at_a_time(trace: Any) -> Any:
    """The optimizer's step as a loop: two copies of the largest parameter stand for the copies of all."""
    largest = max(
        (event.size_bytes for event in trace.events if event.component == "parameters"), default=0
    )
    copies = sum(
        event.size_bytes
        for event in trace.events
        if event.step == trace.steps - 1 and _is_new_temporary(event)
    )
    share = min(1.0, 2 * largest / copies) if copies else 1.0
    return resized(
        trace,
        lambda event: int(share * event.size_bytes) if _is_temporary(event) else event.size_bytes,
    )


def without_scores(trace: Any) -> Any:
    """Attention's scores are never held: what is as large as its softmax, and as square, is gone."""
    sizes = {_square(event) for event in trace.events if event.op == "aten::_softmax"} - {None}

    def size(event: Any) -> int:
        is_scores = event.component in ("activations", "workspace") and _square(event) in sizes
        return 0 if is_scores else int(event.size_bytes)

    return resized(trace, size)


def holds_scores(trace: Any) -> bool:
    """Whether the step materialises attention's scores."""
    return any(
        event.op == "aten::_softmax" and _square(event) is not None for event in trace.events
    )


def _square(event: Any) -> tuple[int, int] | None:
    """How many values, and the side of the square, of what may be scores."""
    shape = event.shape
    if len(shape) < 3 or shape[-1] != shape[-2] or shape[-1] < 2:
        return None
    return math.prod(shape), shape[-1]


def in_chunks(trace: Any) -> Any:
    """Logits and what the loss makes of them exist for a part of the rows at a time."""
    found = logits_shape(trace)
    if found is None:
        return trace
    rows, vocabulary = found

    def size(event: Any) -> int:
        is_logits = (
            event.component in ("activations", "workspace")
            and event.shape[-1:] == (vocabulary,)
            and 2 * math.prod(event.shape) > rows * vocabulary
        )
        return int(event.size_bytes) // CHUNKS if is_logits else int(event.size_bytes)

    return resized(trace, size)


def logits_shape(trace: Any) -> tuple[int, int] | None:
    """Rows and vocabulary of the largest cross-entropy; None where there is none with a large vocabulary."""
    found = [
        event.shape
        for event in trace.events
        if event.op == "aten::_log_softmax" and len(event.shape) == 2
    ]
    rows, vocabulary = max(found, key=math.prod, default=(0, 0))
    return (rows, vocabulary) if vocabulary >= _LARGE_VOCABULARY else None


def sharded(trace: Any, *, stage: int, ranks: int) -> Any:
    """ZeRO's division of the states (1), gradients too (2), parameters too (3), with the buckets or the gathered blocks that go with it."""
    divided = ("optimizer_state", "gradients", "parameters")[:stage]

    def size(event: Any) -> int:
        if event.component in divided or _is_temporary(event):
            return int(event.size_bytes) // ranks
        return int(event.size_bytes)

    held = {1: 0, 2: _BUCKET_BYTES, 3: gathered_bytes(trace)}[stage]
    return holding(resized(trace, size), held)


def on_the_host(trace: Any) -> Any:
    """Parameters, gradients and states live on the host; two blocks are on the device at once."""
    away = ("optimizer_state", "gradients", "parameters")
    held = gathered_bytes(trace)
    changed = resized(
        trace,
        lambda event: 0 if event.component in away or _is_temporary(event) else event.size_bytes,
    )
    return holding(changed, held)


def gathered_bytes(trace: Any) -> int:
    """What sharded parameters take while they are whole: two blocks and one block's gradients, or the largest part outside of blocks."""
    weights = _weights(trace)
    path = block_path(weights)
    blocks: Counter[str | None] = Counter()
    for event in weights:
        blocks[block_of(event, path)] += event.size_bytes
    outside = blocks.pop(None, 0)
    return max(3 * max(blocks.values(), default=0), outside)


def in_nf4(trace: Any) -> Any:
    """The blocks' frozen matrices in NF4 with double quantisation; the largest one is whole for its product."""
    weights = _weights(trace)
    path = block_path(weights)
    quantised = {event.storage for event in weights if _is_quantised(event, path)}
    whole = max((event.size_bytes for event in weights if event.storage in quantised), default=0)
    share = quantised_bytes("nf4-double")

    def size(event: Any) -> int:
        return (
            round(math.prod(event.shape) * share)
            if event.storage in quantised
            else int(event.size_bytes)
        )

    return holding(resized(trace, size), whole)


def _is_quantised(event: Any, path: str | None) -> bool:
    return in_block(event, path) and len(event.shape) == 2 and "adapter_" not in event.module


def resized(trace: Any, size: Callable[[Any], int]) -> Any:
    """The trace with each storage as large as `size` says of its birth."""
    sizes: dict[int, int] = {}

    def events() -> Iterator[Any]:
        for event in trace.events:
            if event.kind == "alloc":
                sizes[event.storage] = size(event)
            new = sizes[event.storage]
            yield event if new == event.size_bytes else replace(event, size_bytes=new)

    return replace(trace, events=tuple(events()))


def holding(trace: Any, size_bytes: int) -> Any:
    """The trace with so many bytes more from the first forward on."""
    first = next((at for at, event in enumerate(trace.events) if event.phase != "data"), None)
    if first is None or not size_bytes:
        return trace
    storage = min(_HELD_STORAGE, min(event.storage for event in trace.events) - 1)
    more = replace(
        trace.events[first], kind="alloc", storage=storage, size_bytes=size_bytes, component="workspace", shape=(), dtype="", module="",
        source="", op="",
    )  # fmt: skip
    return replace(trace, events=(*trace.events[:first], more, *trace.events[first:]))


def _weights(trace: Any) -> list[Any]:
    return [
        event for event in trace.events if event.component == "parameters" and event.kind == "alloc"
    ]


def _is_temporary(event: Any) -> bool:
    return bool(event.phase == "optimizer" and event.component == "workspace")


def _is_new_temporary(event: Any) -> bool:
    return event.kind == "alloc" and _is_temporary(event)
