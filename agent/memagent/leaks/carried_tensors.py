"""Tensors that are carried from step to step: roots of growing graphs, and longer tensors.

1. For an autograd graph that grew: the largest root that a line of the script carries from step to
   step, else the largest one.
2. For a tensor that is created again each step, longer each time (`buffer = torch.cat([buffer,
   x])`): the line that lengthens it.

Such a tensor lives for one step only, so it's looked up anew in each slice.
"""

from __future__ import annotations

from typing import Any

from memagent.leaks import autograd_graphs, census, source_lines
from memagent.leaks.census import LengtheningTensor
from memagent.leaks.detectors.base import TimeBudget, Work
from memagent.leaks.object_names import ObjectName
from memagent.leaks.origins import lines_of
from memagent.leaks.referrers import ReferrerSearch
from memagent.leaks.source_lines import GROWS
from memagent.leaks.suspect import Kind, is_module_class, suspect_at
from memagent.leaks.suspension import present
from memagent.wire.messages import Suspect

_MAX_ROOTS = 8


def suspects_of_graphs(
    search: ReferrerSearch, budget: TimeBudget, more_nodes: int, steps: int, rate: int
) -> Work[list[Suspect]]:
    """Return the root that is carried from step to step, else the largest one.

    rate: bytes per step of what nothing else explains, 0 if unknown.
    """
    min_nodes = min(more_nodes, autograd_graphs.MAX_NODES // 4) // 2
    best: tuple[tuple[int, int], Suspect] | None = None
    for rank in range(_MAX_ROOTS):
        yield from search.pause_if_due()
        if budget.is_over():
            break
        results = _suspects_of_root(search, budget, rank, min_nodes, steps, rate)
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
    search: ReferrerSearch, budget: TimeBudget, rank: int, min_nodes: int, steps: int, rate: int
) -> list[tuple[int, int, Suspect]] | None:
    """Return (certainty of the line, nodes, suspect) of the root of this rank.

    Certainties are 0 to 3. Returns None if there is no root of this rank.
    """
    tensors = census.live_tensors()
    roots = autograd_graphs.largest_roots(tensors, budget.is_slice_over)
    if rank >= len(roots) or roots[rank].nodes < min_nodes:
        return None
    root = roots[rank]
    for own_list in (tensors, roots):
        search.ignore(own_list)
    rate = rate or autograd_graphs.saved_bytes(root.tensor) // steps
    if root.parameter is not None:
        suspects = suspect_gradient(search, root.parameter, rate)
        return [(3, root.nodes, suspect) for suspect in suspects]
    name = search.name(root.tensor).name
    if name is None or not name.is_in_script:
        return []
    line = next(iter(lines_of(search.scopes, name)), None)
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


def suspects_of_lengthening(search: ReferrerSearch, item: LengtheningTensor) -> list[Suspect]:
    """Return a suspect only if a line computes the tensor from itself.

    Without that, batches of random lengths would look the same.
    """
    tensor = next(iter(present(item.tensors)), None)
    tensor = item.find_now() if tensor is None else tensor
    if tensor is None:
        return []
    holder = search.name(tensor)
    name = holder.name
    if name is None:
        return []
    lines = [line for line in lines_of(search.scopes, name) if line.strength == GROWS]
    if not lines:
        return []
    line = next((line for line in lines if line.uses_itself), lines[0])
    owners = [*map(type, holder.above), *([name.owner] if name.owner is not None else [])]
    kind: Kind = "buffer" if any(map(is_module_class, owners)) else "variable"
    text = f"{name.expression}: tensor of {' x '.join(map(str, tensor.shape))}"
    return [suspect_at(name, line, text, kind, item.bytes_per_step, 0.9)]
