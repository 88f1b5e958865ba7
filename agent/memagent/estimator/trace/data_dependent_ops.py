"""Operators whose result is as long as their values say: a trace has none, so it takes a length that is sound.

1. What a router chose (`topk` over E experts, compared with one of them or made one-hot) is expected to be spread
   evenly: each expert gets a share of 1 / E. All experts together get exactly what was routed, so what a layer of them
   keeps does not depend on the spread; only one expert's temporaries do.
2. Anything else (a mask of unknown values) is taken to be true everywhere: no run can need more.

Either way the trace has a note that says so.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

EVEN = "experts are taken to get equal shares of what is routed to them; in a real run that depends on the data"
WORST = "the length of a result of {op} depends on the data: the largest possible one was taken"


class Shares:
    """Which part of a tensor is expected to be true (or not zero), by storage."""

    def __init__(self) -> None:
        self._classes: dict[int, int] = {}
        self._shares: dict[int, float] = {}

    def follow(self, op: str, output: Any, args: tuple[Any, ...]) -> None:
        """Take note of choices among classes and of what is made of them."""
        handler = _FOLLOWED.get(op)
        if handler is not None and args[0].layout is torch.strided and args[0].dim():
            handler(self, output, args)

    def share_of(self, tensor: torch.Tensor) -> float | None:
        """The expected share of elements that are not zero; None where nothing is known."""
        return self._shares.get(_key(tensor))

    def forget(self, key: int) -> None:
        """The storage has died; its place may be taken by another."""
        self._classes.pop(key, None)
        self._shares.pop(key, None)

    # -- what is followed -------------------------------------------------------------------------------------------

    def _chosen(self, output: Any, args: tuple[Any, ...]) -> None:
        dim = args[2] if len(args) > 2 else -1
        self._classes[_key(output[1])] = args[0].shape[dim]

    def _compared(self, output: torch.Tensor, args: tuple[Any, ...]) -> None:
        compared = (
            item for item in args[:2] if isinstance(item, torch.Tensor)
        )  # one-hot: with a range
        classes = next(filter(None, (self._classes.get(_key(item)) for item in compared)), None)
        if classes:
            self._shares[_key(output)] = 1 / classes

    def _scattered(self, output: torch.Tensor, args: tuple[Any, ...]) -> None:
        if self._classes.get(
            _key(args[2])
        ):  # one-hot: a one in each row of as many places as there are classes
            self._shares[_key(output)] = 1 / output.shape[args[1]]

    def _copied(self, output: torch.Tensor, args: tuple[Any, ...]) -> None:
        source, target = _key(args[0]), _key(output)
        if source in self._classes:
            self._classes[target] = self._classes[source]
        if source in self._shares:
            self._shares[target] = self._shares[source]


def sized(
    func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], shares: Shares, notes: list[str]
) -> Any:
    """The output of an operator that fake tensors refuse, with a length from 1. or 2.; None where there is no rule."""
    rule = _RULES.get(func.name())
    if rule is None:
        return None

    return rule(Call(func, args, kwargs, shares, notes))


@dataclass(frozen=True)
class Call:
    """What was called, and what is known of its arguments."""

    func: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    shares: Shares
    notes: list[str]

    def count(self, mask: torch.Tensor) -> int:
        """How many elements are taken to be true; a note says on what grounds."""
        share = self.shares.share_of(mask)
        note = WORST.format(op=self.func.name()) if share is None else EVEN
        if note not in self.notes:
            self.notes.append(note)
        return mask.numel() if share is None else math.ceil(mask.numel() * share)


def _nonzero(call: Call) -> torch.Tensor:
    mask: torch.Tensor = call.args[0]
    return mask.new_empty(
        (mask.dim(), call.count(mask)), dtype=torch.int64
    ).t()  # column by column, as the kernels write it


def _by_index(call: Call) -> Any:
    """Masks among the indices stand for the places where they are true, one index for each of their dimensions."""
    indices: list[Any] = []
    for index in call.args[1]:
        if index is None or index.dtype not in (torch.bool, torch.uint8):
            indices.append(index)
        else:
            places = call.count(index)
            indices += [index.new_empty(places, dtype=torch.int64) for _ in range(index.dim())]
    return call.func(call.args[0], indices, *call.args[2:], **call.kwargs)


def _masked_select(call: Call) -> torch.Tensor:
    values: torch.Tensor = call.args[0]
    mask: torch.Tensor = call.args[1]
    whole = math.prod(torch.broadcast_shapes(values.shape, mask.shape))  # type: ignore[no-untyped-call]
    return values.new_empty(min(whole, call.count(mask) * max(1, whole // max(1, mask.numel()))))


def _unique(call: Call) -> Any:
    """All values may differ. The places and the counts are asked for by the last arguments, or are empty."""
    values, flags = call.args[0], [*call.args[1:], *call.kwargs.values()]
    most, wanted = call.count(values), [flag for flag in flags if isinstance(flag, bool)]
    outputs = len(call.func._schema.returns)
    wants = wanted[-(outputs - 1) :] if len(wanted) >= outputs - 1 else [False] * (outputs - 1)
    sizes = [tuple(values.shape), (most,)]
    rest = [
        values.new_empty(size if want else (0,), dtype=torch.int64)
        for size, want in zip(sizes, wants, strict=False)
    ]
    return (values.new_empty(most), *rest)


def _ctc_loss(call: Call) -> Any:
    """Targets are taken to be as long as they may be: alpha has two states for each of their labels, and one more."""
    scores, targets, lengths = call.args[0], call.args[1], call.args[3]
    batch = scores.shape[1] if scores.dim() == 3 else 1
    longest = targets.shape[-1] if targets.dim() == 2 else call.count(targets)
    if isinstance(lengths, (list, tuple)):
        longest = max(lengths, default=0)
    return scores.new_empty(batch), scores.new_empty((batch, scores.shape[0], 2 * longest + 1))


_RULES: dict[str, Callable[[Call], Any]] = {
    "aten::nonzero": _nonzero,
    "aten::index.Tensor": _by_index,
    "aten::index_put": _by_index,
    "aten::index_put_": _by_index,
    "aten::_index_put_impl_": _by_index,
    "aten::masked_select": _masked_select,
    "aten::_unique": _unique,
    "aten::_unique2": _unique,
    "aten::unique_consecutive": _unique,
    "aten::_ctc_loss": _ctc_loss,
    "aten::_ctc_loss.Tensor": _ctc_loss,
}
_FOLLOWED: dict[str, Callable[[Shares, Any, tuple[Any, ...]], None]] = {
    "aten::topk": Shares._chosen,
    "aten::eq.Scalar": Shares._compared,
    "aten::eq.Tensor": Shares._compared,
    "aten::scatter.value": Shares._scattered,
    "aten::scatter_.value": Shares._scattered,
    **dict.fromkeys(
        ("aten::clone", "aten::_to_copy", "aten::index.Tensor", "aten::index_select"),
        Shares._copied,
    ),
}


def _key(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)
