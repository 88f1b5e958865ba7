"""Operators whose output length depends on values. A trace has no values and chooses a safe length.

1. Choices of a router (`topk`, `max` or `argmax` over E experts, compared with one of them or made
   one-hot) are expected to be even: each expert gets 1 / E. All experts together get exactly the
   routed tokens, so the memory that their layer keeps doesn't depend on the distribution. Only the
   temporaries of a single expert do. Counts of each expert's tokens, which a program may read, are
   even too. A choice compared with labels isn't one of these.
2. Anything else (a mask of unknown values) counts as true everywhere, because no run can need more.

3. Inputs of 8-bit layers are expected to have no outliers.

In all cases the trace gets a note.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

EVEN_EXPERTS_NOTE = (
    "experts are assumed to get equal shares of the tokens; in a real run that depends on the data"
)
WORST_CASE_NOTE = (
    "the length of a result of {op} depends on the data: the largest possible one was assumed"
)
NO_OUTLIERS_NOTE = (
    "int8: no input is assumed to be an outlier, which would be multiplied in 16 bits"
)


class TrueFractions:
    """Tracks the expected fraction of true (or non-zero) elements of tensors, by storage."""

    def __init__(self) -> None:
        self._classes: dict[int, int] = {}
        self._fractions: dict[int, float] = {}
        self._totals: dict[int, int] = {}
        """Tokens of all experts, of tensors that count those of each."""

    def update(self, op: str, output: Any, args: tuple[Any, ...]) -> None:
        """Note a choice among classes, or a tensor derived from one."""
        handler = _TRACKED.get(op)
        if handler is None:
            return
        first = args[0][0] if isinstance(args[0], (list, tuple)) else args[0]
        if first.layout is torch.strided and first.dim():
            handler(self, output, args)

    def of(self, tensor: torch.Tensor) -> float | None:
        """Return the expected fraction of non-zero elements; None if unknown."""
        return self._fractions.get(_key(tensor))

    def count_of(self, tensor: torch.Tensor) -> int | None:
        """Return how many choices one element counts, or None for other tensors.

        Experts get the same number; the first ones also what is left over.
        """
        total = self._totals.get(_key(tensor))
        if total is None:
            return None
        experts = tensor.untyped_storage().nbytes() // tensor.element_size()
        return total // experts + (int(tensor.storage_offset()) < total % experts)

    def forget(self, key: int) -> None:
        """Forget a released storage, whose address another one may reuse."""
        self._totals.pop(key, None)
        self._classes.pop(key, None)
        self._fractions.pop(key, None)

    def _topk(self, output: Any, args: tuple[Any, ...]) -> None:
        dim = args[2] if len(args) > 2 else -1
        self._classes[_key(output[1])] = args[0].shape[dim]

    def _max(self, output: Any, args: tuple[Any, ...]) -> None:
        self._classes[_key(output[1])] = args[0].shape[args[1]]

    def _argmax(self, output: torch.Tensor, args: tuple[Any, ...]) -> None:
        if len(args) > 1 and args[1] is not None:
            self._classes[_key(output)] = args[0].shape[args[1]]

    def _cat(self, output: torch.Tensor, args: tuple[Any, ...]) -> None:
        classes = {self._classes.get(_key(part)) for part in args[0]}
        if None not in classes:
            self._classes[_key(output)] = max(filter(None, classes))

    def _eq(self, output: torch.Tensor, args: tuple[Any, ...]) -> None:
        """Compare each choice with a class, or with all (one-hot), as opposed to its label."""
        for choice, other in (args[:2], args[1::-1]):
            classes = self._classes.get(_key(choice)) if isinstance(choice, torch.Tensor) else None
            compared = other.numel() if isinstance(other, torch.Tensor) else 1
            if classes and output.numel() == choice.numel() * compared:
                self._fractions[_key(output)] = 1 / classes

    def _scatter(self, output: torch.Tensor, args: tuple[Any, ...]) -> None:
        if self._classes.get(_key(args[2])):  # one-hot, or as many ones in each row as choices
            self._fractions[_key(output)] = args[2].shape[args[1]] / output.shape[args[1]]

    def _sum(self, output: torch.Tensor, args: tuple[Any, ...]) -> None:
        fraction = self.of(args[0])
        if fraction is not None:
            self._totals[_key(output)] = round(args[0].numel() * fraction)

    def _bincount(self, output: torch.Tensor, args: tuple[Any, ...]) -> None:
        if _key(args[0]) in self._classes:
            self._totals[_key(output)] = args[0].numel()

    def _copy(self, output: torch.Tensor, args: tuple[Any, ...]) -> None:
        source, target = _key(args[0]), _key(output)
        if source in self._classes:
            self._classes[target] = self._classes[source]
        if source in self._fractions:
            self._fractions[target] = self._fractions[source]
        if source in self._totals and output.shape == args[0].shape:
            self._totals[target] = self._totals[source]


@dataclass(frozen=True)
class OperatorCall:
    """A call of an operator, with what is known of its arguments."""

    func: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    fractions: TrueFractions
    notes: list[str]

    def count_true(self, mask: torch.Tensor) -> int:
        """Return how many elements count as true, and add a note on the assumption."""
        fraction = self.fractions.of(mask)
        note = (
            WORST_CASE_NOTE.format(op=self.func.name()) if fraction is None else EVEN_EXPERTS_NOTE
        )
        self.add_note(note)
        return mask.numel() if fraction is None else math.ceil(mask.numel() * fraction)

    def add_note(self, note: str) -> None:
        if note not in self.notes:
            self.notes.append(note)


def run_data_dependent(call: OperatorCall) -> Any:
    """Return the output of an operator that fake tensors refuse; None if it has no rule."""
    rule = _RULES.get(call.func.name())
    return None if rule is None else rule(call)


def _nonzero(call: OperatorCall) -> torch.Tensor:
    mask: torch.Tensor = call.args[0]
    # The kernels write column by column.
    return mask.new_empty((mask.dim(), call.count_true(mask)), dtype=torch.int64).t()


def _index(call: OperatorCall) -> Any:
    """Replace each mask among the indices by one index for each of its dimensions."""
    indices: list[Any] = []
    for index in call.args[1]:
        if index is None or index.dtype not in (torch.bool, torch.uint8):
            indices.append(index)
        else:
            length = call.count_true(index)
            indices += [index.new_empty(length, dtype=torch.int64) for _ in range(index.dim())]
    return call.func(call.args[0], indices, *call.args[2:], **call.kwargs)


def _bincount(call: OperatorCall) -> torch.Tensor | None:
    """Count the choices of a router; the length of other counts has no bound."""
    arguments = (*call.args[1:], *call.kwargs.values())
    length = next((item for item in arguments if isinstance(item, int)), 0)
    return call.args[0].new_empty(length, dtype=torch.int64) if length else None


def _masked_select(call: OperatorCall) -> torch.Tensor:
    values: torch.Tensor = call.args[0]
    mask: torch.Tensor = call.args[1]
    total = math.prod(torch.broadcast_shapes(values.shape, mask.shape))  # type: ignore[no-untyped-call]
    # the mask is broadcast: each true element selects as many values
    repeats = max(1, total // max(1, mask.numel()))
    return values.new_empty(min(total, call.count_true(mask) * repeats))


def _unique(call: OperatorCall) -> Any:
    """Assume that all values differ. The last flags request the inverse and the counts."""
    values, arguments = call.args[0], [*call.args[1:], *call.kwargs.values()]
    length, flags = call.count_true(values), [flag for flag in arguments if isinstance(flag, bool)]
    optional = len(call.func._schema.returns) - 1
    requested = flags[-optional:] if len(flags) >= optional else [False] * optional
    sizes = [tuple(values.shape), (length,)]
    outputs = [
        values.new_empty(size if is_requested else (0,), dtype=torch.int64)
        for size, is_requested in zip(sizes, requested, strict=False)
    ]
    return (values.new_empty(length), *outputs)


def _ctc_loss(call: OperatorCall) -> Any:
    """Assume targets of maximal length: alpha has two states for each label, plus one."""
    scores, targets, lengths = call.args[0], call.args[1], call.args[3]
    batch = scores.shape[1] if scores.dim() == 3 else 1
    length = targets.shape[-1] if targets.dim() == 2 else call.count_true(targets)
    if isinstance(lengths, (list, tuple)):
        length = max(lengths, default=0)
    return scores.new_empty(batch), scores.new_empty((batch, scores.shape[0], 2 * length + 1))


def _eight_bit_rows(call: OperatorCall) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return bitsandbytes' 8-bit values, a scale for each row, and no outliers."""
    values: torch.Tensor = call.args[0]
    call.add_note(NO_OUTLIERS_NOTE)
    rows = values.numel() // values.shape[-1]
    scales = values.new_empty(rows, dtype=torch.float32)
    return torch.empty_like(values, dtype=torch.int8), scales, _no_outliers(values, torch.int64)


def _eight_bit_product(call: OperatorCall) -> tuple[torch.Tensor, torch.Tensor]:
    values, _, weight = call.args[:3]
    output = values.new_empty((*values.shape[:-1], weight.shape[0]))
    return output, _no_outliers(values, values.dtype)


def _no_outliers(values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return values.new_empty(0, dtype=dtype)


_RULES: dict[str, Callable[[OperatorCall], Any]] = {
    "aten::nonzero": _nonzero,
    "aten::index.Tensor": _index,
    "aten::index_put": _index,
    "aten::index_put_": _index,
    "aten::_index_put_impl_": _index,
    "bitsandbytes::int8_vectorwise_quant": _eight_bit_rows,
    "bitsandbytes::int8_mixed_scaled_mm": _eight_bit_product,
    "aten::bincount": _bincount,
    "aten::masked_select": _masked_select,
    "aten::_unique": _unique,
    "aten::_unique2": _unique,
    "aten::unique_consecutive": _unique,
    "aten::_ctc_loss": _ctc_loss,
    "aten::_ctc_loss.Tensor": _ctc_loss,
}
_TRACKED: dict[str, Callable[[TrueFractions, Any, tuple[Any, ...]], None]] = {
    "aten::topk": TrueFractions._topk,
    "aten::max.dim": TrueFractions._max,
    "aten::argmax": TrueFractions._argmax,
    "aten::cat": TrueFractions._cat,
    "aten::sum": TrueFractions._sum,
    "aten::sum.dim_IntList": TrueFractions._sum,
    "aten::bincount": TrueFractions._bincount,
    "aten::histc": TrueFractions._bincount,
    "aten::eq.Scalar": TrueFractions._eq,
    "aten::eq.Tensor": TrueFractions._eq,
    "aten::scatter.value": TrueFractions._scatter,
    "aten::scatter_.value": TrueFractions._scatter,
    "aten::clone": TrueFractions._copy,
    "aten::_to_copy": TrueFractions._copy,
    "aten::index.Tensor": TrueFractions._copy,
    "aten::index_select": TrueFractions._copy,
}


def _key(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)
