"""Tensors that are carried from step to step: roots of growing graphs, and longer tensors.

1. For an autograd graph that grew: the largest root that a line of the script carries from step to
   step, else the largest one.
2. For a tensor that is created again each step, longer each time (`buffer = torch.cat([buffer,
   x])`): the line that lengthens it.

Such a tensor lives for one step only, so it's looked up anew in each slice.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from memagent.components import live_objects
from memagent.leaks import autograd_graphs, census, source_lines
from memagent.leaks.census import MIN_SHARE, Census, TensorEntry
from memagent.leaks.detectors.base import TimeBudget, Work
from memagent.leaks.object_names import ObjectName
from memagent.leaks.origins import lines_of
from memagent.leaks.reachability import nearest_name
from memagent.leaks.referrers import ReferrerSearch
from memagent.leaks.source_lines import GROWS
from memagent.leaks.suspect import Kind, is_module_class, suspect_at
from memagent.leaks.suspension import present
from memagent.wire.messages import Suspect

MAX_DEVIATION = 0.15
"""Largest distance of a length in the middle from a line, as a share of what is added.

A cache that is cut now and then isn't near the line.
"""
_MAX_ROOTS = 8
Family = tuple[Any, ...]
"""What tensors have in common that differ in one length only."""


@dataclass(frozen=True)
class GraphGrowth:
    """Growth of autograd's graphs in a window.

    bytes_per_step: what nothing else explains, 0 if unknown. middle_node: sequence number of the
    last node halfway, 0 if unknown. A graph without an older one is made anew, of longer inputs.
    """

    nodes: int
    steps: int
    bytes_per_step: int
    middle_node: int


def suspects_of_graphs(
    search: ReferrerSearch, budget: TimeBudget, growth: GraphGrowth
) -> Work[list[Suspect]]:
    """Return the root that is carried from step to step, else the largest one."""
    min_nodes = min(growth.nodes, autograd_graphs.MAX_NODES // 4) // 2
    best: tuple[tuple[int, int], Suspect] | None = None
    for rank in range(_MAX_ROOTS):
        yield from search.pause_if_due()
        if budget.is_over():
            break
        results = _suspects_of_root(search, budget, rank, min_nodes, growth)
        if results is None:
            break
        for certainty, nodes, suspect in results:
            score = (certainty, nodes)
            if best is None or score > best[0]:
                best = score, suspect
        if best is not None and best[0][0] > 0:
            break
    return [best[1]] if best else []


def _suspects_of_root(
    search: ReferrerSearch, budget: TimeBudget, rank: int, min_nodes: int, growth: GraphGrowth
) -> list[tuple[int, int, Suspect]] | None:
    """Return (certainty of the line, nodes, suspect) of the root of this rank.

    Certainties are 0 to 3. Returns None if there is no root of this rank.
    """
    tensors = live_objects.live_tensors()
    roots = autograd_graphs.largest_roots(tensors, budget.is_slice_over)
    if rank >= len(roots) or roots[rank].nodes < min_nodes:
        return None
    root = roots[rank]
    for own_list in (tensors, roots):
        search.ignore(own_list)
    rate = growth.bytes_per_step or autograd_graphs.saved_bytes(root.tensor) // growth.steps
    if root.parameter is not None:
        suspects = suspect_gradient(search, root.parameter, rate)
        return [(3, root.nodes, suspect) for suspect in suspects]
    if root.oldest > growth.middle_node > 0:
        return []
    name = nearest_name(search, root.tensor, budget).name
    if name is None or not name.is_in_script:
        return []
    lines = lines_of(search.scopes, name)
    changing = (line for line in lines if line.uses_itself and line.strength == GROWS)
    line = next(changing, next(iter(lines), None))
    is_carried = line is not None and line.strength == GROWS
    kind: Kind = "graph" if root.tensor.numel() == 1 else "hidden_state"
    text = f"{name.expression}: graph of {root.nodes:,} nodes"
    suspect = suspect_at(name, line, text, kind, rate, 0.9 if is_carried else 0.4)
    return [(2 * is_carried, root.nodes, suspect)]


def suspect_gradient(search: ReferrerSearch, parameter: Any, rate: int | None) -> list[Suspect]:
    """Return the line that makes gradients keep a graph, by its `create_graph=True`."""
    name = search.name(parameter).name if parameter is not None else None
    text = "gradients that keep their graph"
    if name is not None:
        text = f"{name.expression}.grad: gradient with a graph"
    for file in search.scopes.files:
        for line in source_lines.calls_with(file, "create_graph"):
            gradient = ObjectName(text, (), line.file, line.function)
            return [suspect_at(gradient, line, text, "gradient", rate, 0.8)]
    return []


def suspects_of_lengthening(
    search: ReferrerSearch, budget: TimeBudget, item: LengtheningTensor
) -> list[Suspect]:
    """Return a suspect only if a line computes the tensor from itself.

    Without that, batches of random lengths would look the same.
    """
    tensor = next(iter(present(item.tensors)), None)
    tensor = item.find_now() if tensor is None else tensor
    if tensor is None:
        return []
    holder = nearest_name(search, tensor, budget)
    name = holder.name
    if name is None:
        return _suspects_of_sums(search, tensor, item)
    lines = [line for line in lines_of(search.scopes, name) if line.strength == GROWS]
    if not lines:
        return []
    line = next((line for line in lines if line.uses_itself), lines[0])
    if item.is_in_turn and not line.uses_itself:
        return []
    owners = [*map(type, holder.above), *([name.owner] if name.owner is not None else [])]
    kind: Kind = "buffer" if any(map(is_module_class, owners)) else "variable"
    text = f"{name.expression}: tensor of {' x '.join(map(str, tensor.shape))}"
    return [suspect_at(name, line, text, kind, item.bytes_per_step, 0.9)]


def _suspects_of_sums(
    search: ReferrerSearch, tensor: Any, item: LengtheningTensor
) -> list[Suspect]:
    """Return the `backward` that adds to a sparse gradient which is never zeroed."""
    if tensor.layout is sys.modules["torch"].strided:
        return []  # of a parameter that is made anew, longer
    tensors = live_objects.live_tensors()
    search.ignore(tensors)
    for parameter in autograd_graphs.with_gradient(tensors, tensor):
        name = search.name(parameter).name
        for file in search.scopes.files if name is not None else ():
            for line in source_lines.method_calls(file, "backward"):
                text = f"{name.expression}.grad: sparse, with more values in each step"  # type: ignore[union-attr]
                return [suspect_at(name, line, text, "gradient", item.bytes_per_step, 0.8)]  # type: ignore[arg-type]
    return []


# -- longer tensors -----------------------------------------------------------------------------


@dataclass(frozen=True)
class LengtheningTensor:
    """A tensor that is created again each step, longer each time."""

    tensors: list[Any]
    """The tensor alone. It's freed within a step."""
    bytes_per_step: int
    family: Family
    is_in_turn: bool = False
    """True for one of several tensors that are lengthened in turn."""

    def find_now(self) -> Any:
        """Return the longest tensor of this kind that is alive now, or None."""
        tensors = live_objects.live_tensors()
        entries = census.take(0, tensors).entries
        lengths = {
            key: length
            for key, entry in entries.items()
            for axis, length in enumerate(entry.shape)
            if _family(entry, axis) == self.family
        }
        longest = max(lengths, key=lengths.__getitem__, default=None)
        return next((tensor for tensor in tensors if id(tensor) == longest), None)


def lengthening_tensors(
    first: Census,
    before_last: Census,
    last: Census,
    tensors: Iterable[Any],
    middle: Census | None = None,
) -> list[LengtheningTensor]:
    """Return tensors like `buffer = torch.cat([buffer, x])`, most bytes first.

    One dimension grows as steadily as the steps do; the others stay. Of several buffers that are
    lengthened in turn, only the sum of the lengths does.
    """
    longer = _lengthening_each_step(first, middle, before_last, last, tensors)
    if not longer and middle is not None:
        longer = _lengthening_in_turn(first, middle, last, tensors)
    return sorted(longer, key=lambda item: -item.bytes_per_step)


def _lengthening_each_step(
    first: Census, middle: Census | None, before_last: Census, last: Census, tensors: Iterable[Any]
) -> list[LengtheningTensor]:
    old, recent = _lengths_by_family(first), _lengths_by_family(before_last)
    halfway = {} if middle is None else _lengths_by_family(middle)
    steps = last.step - first.step
    lengthening = []
    for tensor in tensors:
        entry = last.entries.get(id(tensor))
        # this very tensor was there before, as long: it was neither created again nor extended
        if entry is None or before_last.has(tensor, entry, entry.shape):
            continue
        for axis, length in enumerate(entry.shape):
            family = _family(entry, axis)
            earliest, latest = old.get(family, ()), recent.get(family, ())
            starts = [
                a
                for a in earliest
                if any(_is_line(a, b, length, first, before_last, last) for b in latest)
                and (
                    middle is None
                    or _passes(a, length, first, middle, last, halfway.get(family, set()))
                )
            ]
            if length > 2 and starts:
                start = min(starts)
                rate = round(entry.size_bytes * (length - start) / length / steps)
                lengthening.append(LengtheningTensor([tensor], rate, family))
                break
    return lengthening


def _lengthening_in_turn(
    first: Census, middle: Census, last: Census, tensors: Iterable[Any]
) -> list[LengtheningTensor]:
    """Return the longest new tensor of each family with as many members, but more in all."""
    sums = [_sums_by_family(item) for item in (first, middle, last)]
    steps = last.step - first.step
    late_share = (last.step - middle.step) / max(1, steps)
    longest: dict[Family, LengtheningTensor] = {}
    new = [
        (last.entries[id(tensor)].size_bytes, index, tensor)
        for index, tensor in enumerate(tensors)
        if id(tensor) in last.entries and not first.has(tensor, last.entries[id(tensor)])
    ]
    for _, _, tensor in sorted(new):
        entry = last.entries[id(tensor)]
        for axis, length in enumerate(entry.shape):
            family = _family(entry, axis)
            (count, early), (_, half), (now, late) = (item.get(family, (0, 0)) for item in sums)
            growth = late - early
            is_steady = late - half >= MIN_SHARE * late_share * growth
            is_steady &= half - early >= MIN_SHARE * (1 - late_share) * growth
            if count == now and length > 2 and growth >= steps and is_steady:
                rate = round(entry.size_bytes / length * growth / steps)
                longest[family] = LengtheningTensor([tensor], rate, family, is_in_turn=True)
    return list(longest.values())


def _sums_by_family(tensors: Census) -> dict[Family, tuple[int, int]]:
    """Return the number of tensors, and the sum of their lengths."""
    sums: dict[Family, tuple[int, int]] = {}
    for entry in tensors.entries.values():
        for axis, length in enumerate(entry.shape):
            count, total = sums.get(family := _family(entry, axis), (0, 0))
            sums[family] = count + 1, total + length
    return sums


def _is_line(a: int, b: int, c: int, first: Census, before_last: Census, last: Census) -> bool:
    """Return True if three lengths rise on a line, to within a quarter of a step's growth."""
    if not a < b < c:
        return False
    slope = (c - a) / (last.step - first.step)
    return abs(c - b - slope * (last.step - before_last.step)) <= 0.25 * slope + 1e-9


def _passes(
    start: int, end: int, first: Census, middle: Census, last: Census, lengths: set[int]
) -> bool:
    """Return True if one of the lengths in the middle is near the line from start to end."""
    share = (middle.step - first.step) / max(1, last.step - first.step)
    expected = start + share * (end - start)
    return any(abs(length - expected) <= MAX_DEVIATION * (end - start) for length in lengths)


def _family(entry: TensorEntry, axis: int) -> Family:
    """Return what tensors have in common that differ in the length of `axis` only."""
    return (entry.device, entry.dtype, axis, *entry.shape[:axis], -1, *entry.shape[axis + 1 :])


def _lengths_by_family(tensors: Census) -> dict[Family, set[int]]:
    families: dict[Family, set[int]] = {}
    for entry in tensors.entries.values():
        for axis, length in enumerate(entry.shape):
            families.setdefault(_family(entry, axis), set()).add(length)
    return families
