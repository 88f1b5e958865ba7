"""Tensors that are carried from step to step: roots of growing graphs, and longer tensors.

1. For an autograd graph that grew: the largest root that a line of the script carries from step to
   step, else the largest one.
2. For a tensor that is created again each step, longer each time (`buffer = torch.cat([buffer,
   x])`): the line that lengthens it, or that calls a library which does.

Such a tensor lives for one step only, so it's looked up anew in each slice.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

from memagent.components import live_objects
from memagent.leaks import autograd_graphs, source_lines
from memagent.leaks.detectors.base import Work
from memagent.leaks.free_memory import BoundCheck
from memagent.leaks.lengthening import LengtheningTensor
from memagent.leaks.library_calls import lengthening_calls
from memagent.leaks.loop_iterators import sum_of
from memagent.leaks.object_names import ObjectName
from memagent.leaks.origins import lines_of
from memagent.leaks.reachability import names_of, nearest_name
from memagent.leaks.referrers import HolderPath, ReferrerSearch
from memagent.leaks.source_lines import GROWS, SourceLine
from memagent.leaks.suspect import CERTAINTIES, Kind, is_module_class, is_optimizer, suspect_at
from memagent.leaks.suspension import present
from memagent.leaks.time_budgets import TimeBudget
from memagent.wire.messages import Suspect

_MAX_ROOTS = 8


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
    roots = autograd_graphs.largest_roots(tensors, budget.is_slice_over, number=growth.middle_node)
    if rank >= len(roots) or roots[rank].nodes < min_nodes:
        return None
    root = roots[rank]
    for own_list in (tensors, roots):
        search.ignore(own_list)
    rate = growth.bytes_per_step or autograd_graphs.saved_bytes(root.tensor) // growth.steps
    if root.parameter is not None:
        suspects = suspect_gradient(search, root.parameter, rate)
        return [(3, root.nodes, suspect) for suspect in suspects]
    named = _carrying_name(search, root.tensor, budget)
    if named is None:
        return []
    name, line = named
    is_carried = line is not None and line.strength == GROWS
    kind: Kind = "graph" if root.tensor.numel() == 1 else "hidden_state"
    text = f"{name.expression}: graph of {root.nodes:,} nodes"
    suspect = suspect_at(name, line, text, kind, rate, 0.9 if is_carried else 0.4)
    return [(2 * is_carried, root.nodes, suspect)]


def _carrying_name(
    search: ReferrerSearch, tensor: Any, budget: TimeBudget
) -> tuple[ObjectName, SourceLine | None] | None:
    """Return the name by which a line, or an iterator, computes the tensor from itself.

    Else return the nearest one.
    """
    first: tuple[ObjectName, SourceLine | None] | None = None
    for holder in names_of(search, tensor, budget):
        name = holder.name
        if name is None or not name.is_in_script:
            continue
        lines = lines_of(search.scopes, name)
        changing = (line for line in lines if line.uses_itself and line.strength == GROWS)
        if (line := next(changing, None)) is not None:
            return name, line
        first = first or (name, next(iter(lines), None))
    return sum_of(tensor, search.scopes.files) or first


def suspect_gradient(search: ReferrerSearch, parameter: Any, rate: int | None) -> list[Suspect]:
    """Return the line that makes gradients keep a graph, by its `create_graph=True`."""
    name = search.name(parameter).name if parameter is not None else None
    text = "parameter.grad: gradients that keep their graph"
    if name is not None:
        text = f"{name.expression}.grad: gradient with a graph"
    for file in search.scopes.files:
        for line in source_lines.calls_with(file, "create_graph"):
            gradient = ObjectName(text, (), line.file, line.function)
            return [suspect_at(gradient, line, text, "gradient", rate, 0.8)]
    return []


def suspects_of_lengthening(
    search: ReferrerSearch, budget: TimeBudget, item: LengtheningTensor, bounds: BoundCheck
) -> list[Suspect]:
    """Return a suspect only if a line computes the tensor from itself.

    Without that, batches of random lengths would look the same.
    """
    tensors = present(item.tensors)
    named = _named_tensor(search, tensors, budget)
    if named is None:  # freed, or the base of a view: only C++ holds it
        tensors = item.find_now()
        named = _named_tensor(search, tensors, budget)
    if named is None:
        return _suspects_of_sums(search, tensors[0], item) if tensors else []
    tensor, holder, name = named
    lines = [line for line in lines_of(search.scopes, name) if line.strength == GROWS]
    lines = lines or lengthening_calls(name, holder, search.scopes.files)
    if not lines:
        return []
    line = next((line for line in lines if line.uses_itself), lines[0])
    if item.is_in_turn and not line.uses_itself:
        return []
    if not bounds.can_lengthen(holder, tensor, item.bytes_per_step):
        return []
    owners = [*map(type, holder.above), *([name.owner] if name.owner is not None else [])]
    kind: Kind = "buffer" if any(map(is_module_class, owners)) else "variable"
    text = f"{name.expression}: tensor of {' x '.join(map(str, tensor.shape))}"
    confidence = 0.9 * CERTAINTIES[line.strength]
    suspect = suspect_at(name, line, text, kind, item.bytes_per_step, confidence)
    return [bounds.with_fix(suspect, holder)]


def _named_tensor(
    search: ReferrerSearch, tensors: list[Any], budget: TimeBudget
) -> tuple[Any, HolderPath, ObjectName] | None:
    """Return the first of the tensors that has a name, with its holder."""
    search.ignore(tensors)
    for tensor in tensors:
        holder = _own_name(search, tensor, budget)
        if holder.name is not None:
            return tensor, holder, holder.name
    return None


def _own_name(search: ReferrerSearch, tensor: Any, budget: TimeBudget) -> HolderPath:
    """Return the nearest name of a tensor, for a parameter that of its module."""
    holder = nearest_name(search, tensor, budget)
    optimizers = {id(item) for item in holder.above if is_optimizer(item)}
    other = nearest_name(search, tensor, budget, optimizers) if optimizers else holder
    is_better = other.name is not None and not any(map(is_optimizer, other.above))
    return other if is_better else holder


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
