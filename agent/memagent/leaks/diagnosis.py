"""Diagnosis: from two censuses to suspects.

1. For tensors that survived and became more: search upwards from a sample of each group to the
   container that holds them (`referrers`), name it, and find the line that fills it
   (`growth`).
2. For those that nothing in Python holds: look for an attribute of a custom autograd function's
   context, gradients with a graph, and reference cycles.
3. For an autograd graph that grew and isn't explained yet: find the largest root that is carried
   from step to step.
4. For a tensor that is created again each step, longer each time (`buffer = torch.cat([buffer,
   x])`): find the line that lengthens it.

The comparison is made at once; the searches are cut into slices between steps. Where a generator
yields, its frame must not hold an object of the script: only lists that the search knows may. A
tensor of 3 or 4 lives for one step only, so it's looked up anew in each slice.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from memagent.leaks import autograd_graphs, census, origins, source_lines
from memagent.leaks.census import Census, GroupCount, GroupGrowth, LengtheningTensor
from memagent.leaks.detectors.base import TimeBudget, Work
from memagent.leaks.growing_containers import GrowingContainer
from memagent.leaks.growth import growing_lines
from memagent.leaks.object_names import ObjectName, file_of
from memagent.leaks.reachability import holder_from_variables
from memagent.leaks.referrers import HolderPath, ReferrerSearch, can_name_cycle, name_cycle
from memagent.leaks.source_lines import GROWS, PASSES, SETS, SourceLine, SourceScope
from memagent.leaks.suspect import (
    Kind,
    build_suspect,
    can_grow,
    classify,
    describe_container,
    is_module_class,
    scale_confidence,
)
from memagent.leaks.suspension import present
from memagent.leaks.user_code import UserScopes, is_script, is_script_class, namespace
from memagent.wire.messages import Suspect

MAX_CPU_S = 10.0
"""Processor time of one diagnosis, in all its slices: some thirty passes over 2 million objects."""
_CUT_SHORT_CONFIDENCE = 0.7
"""Confidence factor for a diagnosis that was cut short."""
CERTAINTIES = {GROWS: 1.0, PASSES: 0.8, SETS: 0.6}
"""Confidence by the strength of a line."""
_SAMPLE_SIZE = 8
_MAX_GROUPS = 4
_MAX_ROOTS = 8
_MAX_SCOPES = 12
_MAX_SUSPECTS = 3
_MAX_CONTAINERS = 6
_HOST_CONFIDENCE = 0.8


def diagnose(
    first: Census,
    before_last: Census,
    step: int,
    budget: TimeBudget,
    *,
    middle: Census | None = None,
    measured_bytes_per_step: int | None = None,
) -> Work[tuple[list[Suspect], tuple[GroupCount, ...]]]:
    """Return what holds the growth between `first` and now, most likely first, and what grew.

    before_last: a census from one step ago. middle: one from halfway. measured_bytes_per_step:
    growth as the device or the host reports it. If the budget ends early, suspects are missing, and
    the others are less sure. Leaves no references behind, neither in the end nor between slices.
    """
    tensors = census.live_tensors()
    last = census.take(step, tensors, autograd_graphs.count_nodes(tensors))
    growths = census.growing_groups(first, before_last, last, tensors, middle)[:_MAX_GROUPS]
    longer = census.lengthening_tensors(first, before_last, last, tensors)[:_MAX_GROUPS]
    more_nodes = last.nodes - first.nodes
    steps = max(1, last.step - first.step)
    counts = census.group_counts(growths, first, last)
    if not growths and not longer and more_nodes < steps // 2:
        return [], counts
    search = ReferrerSearch(UserScopes(), {id(growths)}, budget)
    old_storages = {entry.storage for entry in first.entries.values()}
    case = _Case(search, budget, steps, measured_bytes_per_step, old_storages)
    # These lists refer to the tensors as well, and must not be found as their holders.
    for growth in growths:
        search.hold(growth.survivors)
    for item in longer:
        search.hold(item.tensors)
    del tensors
    try:
        suspects = yield from _search_all(case, growths, longer, more_nodes)
    finally:
        search.close()
    if budget.was_hit:
        suspects = [scale_confidence(suspect, _CUT_SHORT_CONFIDENCE) for suspect in suspects]
    return _rank(suspects), counts


def _search_all(
    case: _Case,
    growths: Sequence[GroupGrowth],
    longer: Sequence[LengtheningTensor],
    more_nodes: int,
) -> Work[list[Suspect]]:
    search, budget = case.search, case.budget
    suspects: list[Suspect] = []
    # what is freed within a step first
    for growth in growths:
        if growth.is_renewed and not budget.is_over():
            suspects += search.at_once(case.suspects_of_group(growth))
    for item in longer:
        yield from search.pause_if_due()
        if not budget.is_over():
            suspects += case.suspects_of_lengthening(item)
    for growth in growths:
        yield from search.pause_if_due()
        if not growth.is_renewed and not budget.is_over():
            suspects += yield from case.suspects_of_group(growth)
    is_explained = any(suspect.kind != "cycle" for suspect in suspects)
    if more_nodes >= max(2, case.steps // 2) and not is_explained:
        yield from search.pause_if_due()
        suspects += yield from case.suspects_of_graphs(more_nodes)
    if not suspects and case.unheld_bytes_per_step:
        yield from search.pause_if_due()
        suspects += yield from case.suspects_of_cycles(growths)
    return suspects


def _rank(suspects: Sequence[Suspect]) -> list[Suspect]:
    """Return one suspect per line, surest and largest first."""
    lines: dict[tuple[str, int], Suspect] = {}
    for suspect in sorted(suspects, key=lambda item: (-item.confidence, -_rate(item))):
        lines.setdefault((suspect.file, suspect.line), suspect)
    ranked = sorted(lines.values(), key=lambda item: -_rate(item) * item.confidence)
    return ranked[:_MAX_SUSPECTS]


def _rate(suspect: Suspect) -> float:
    return suspect.bytes_per_step or 0


@dataclass
class _Case:
    """One diagnosis in progress."""

    search: ReferrerSearch
    budget: TimeBudget
    steps: int
    measured_bytes_per_step: int | None
    old_storages: set[int]
    """Storages that existed before the first census."""
    unheld_bytes_per_step: int = 0
    """Growth that nothing in Python refers to."""

    @property
    def scopes(self) -> UserScopes:
        return self.search.scopes

    # -- 1. containers ----------------------------------------------------------------------

    def suspects_of_group(self, growth: GroupGrowth) -> Work[list[Suspect]]:
        holder = yield from self._common_holder(growth)
        growth.survivors[:] = present(growth.survivors)
        if not growth.survivors:
            return []
        if holder is None or holder.name is None:
            return self._suspects_without_holder(growth)
        if not can_grow(holder):
            return []
        kind = classify(holder, growth)
        line = line_of_holder(self.scopes, holder, kind)
        if line is None and (attribute := origins.attribute_below(holder)) is not None:
            name, line = attribute
            text, rate = f"{name.expression}: tensor", self._rate_with_graphs(growth)
            return [_suspect(name, line, text, "object", rate, holder.coverage)]
        line = line or origins.creating_line(holder, self.scopes.files)
        if line is None and not holder.name.is_in_script:
            return []
        is_plain_container = kind in ("list", "dict", "deque", "set")
        if line and is_plain_container and source_lines.is_hook(line.file, line.function):
            kind = "hook"
        text = (
            f"{holder.name.expression}: {describe_container(holder.container, kind, holder.below)}"
        )
        certainty = 0.5 if line is None else CERTAINTIES[line.strength]
        confidence = holder.coverage * certainty
        return [_suspect(holder.name, line, text, kind, self._rate_with_graphs(growth), confidence)]

    def _common_holder(self, growth: GroupGrowth) -> Work[HolderPath | None]:
        """Return the holder of the outermost tensors, if there is one, else of all survivors.

        An output that keeps its graph also keeps activations, which nothing in Python holds.
        """
        survivors = growth.survivors
        survivors[:] = present(survivors)
        outermost = self.search.hold(autograd_graphs.outermost(survivors))
        holder = yield from self.search.common_holder(_sample(outermost))
        if holder is None and len(outermost) < len(survivors):
            holder = yield from self.search.common_holder(_sample(present(survivors)))
        if holder is not None and not _is_connected(holder):
            # replaced during a pause: `memory = memory + [x]`
            sample = _sample(present(outermost))
            holder = self.search.at_once(self.search.common_holder(sample))
        if holder is None or holder.name is None:
            holder = holder_from_variables(self.scopes, present(outermost), self.budget) or holder
        return holder

    def _rate_with_graphs(self, growth: GroupGrowth) -> int:
        """Return bytes per step, including what the survivors' graphs keep.

        The measured growth is the maximum, since graphs may reach far back.
        """
        own, saved = autograd_graphs.held_storages(growth.survivors)
        storages = {**saved, **own}
        total = sum(size for key, size in storages.items() if key not in self.old_storages)
        rate = growth.bytes_per_step * total // sum(own.values()) if own else growth.bytes_per_step
        limit = rate if self.measured_bytes_per_step is None else self.measured_bytes_per_step
        return max(growth.bytes_per_step, min(rate, limit))

    # -- 2. tensors without a holder in Python ----------------------------------------------

    def _suspects_without_holder(self, growth: GroupGrowth) -> list[Suspect]:
        """Return the context of an autograd function, or a gradient's cycle with its parameter.

        C++ holds the tensors of both.
        """
        for item in self.search.visited:
            function = getattr(type(item), "_forward_cls", None)
            suspect = None if function is None else self._suspect_context(function, item, growth)
            if suspect is not None:
                return [suspect]
        leaves = (tensor for tensor in growth.survivors if tensor.is_leaf and tensor.requires_grad)
        if any(leaf.grad is not None and leaf.grad.grad_fn is not None for leaf in leaves):
            return self._suspect_gradient(None, growth.bytes_per_step)
        self.unheld_bytes_per_step += growth.bytes_per_step
        return []

    def _suspect_context(self, function: type, context: Any, growth: GroupGrowth) -> Suspect | None:
        attribute = next(iter(namespace(context) or ()), None)
        code = getattr(getattr(function, "forward", None), "__code__", None)
        if attribute is None or code is None or not is_script(code.co_filename):
            return None
        file, name = code.co_filename, function.__name__
        line = next(iter(source_lines.attribute_assignments(file, name, attribute)), None)
        text = f"{name}: ctx.{attribute}"
        context_name = ObjectName(text, (attribute,), file, name, code=code)
        rate = growth.bytes_per_step
        return _suspect(context_name, line, f"{text}: tensor", "autograd_function", rate, 0.8)

    def suspects_of_cycles(self, growths: Sequence[GroupGrowth]) -> Work[list[Suspect]]:
        """Name a reference cycle while it exists, then check that the collector frees it."""
        for growth in growths:
            growth.survivors[:] = present(growth.survivors)
            if len(growth.survivors) < 0.8 * self.steps:
                continue  # the collector has freed some of it, and will again
            if self.budget.is_over():
                break
            referrers = yield from self.search.referrers_until(growth.survivors[-1], can_name_cycle)
            cycle = name_cycle(present(referrers))
            self.search.clear()
            if cycle is None:
                continue
            yield from self.search.pause_if_due()
            self.search.close()
            if not _frees_most(growth.survivors, growths):
                break
            name, line = cycle
            text = f"{name.expression}: reference cycle"
            return [_suspect(name, line, text, "cycle", self.unheld_bytes_per_step, 0.7)]
        return []

    # -- 3. graphs --------------------------------------------------------------------------

    def suspects_of_graphs(self, more_nodes: int) -> Work[list[Suspect]]:
        """Return the root that is carried from step to step, else the largest one."""
        min_nodes = min(more_nodes, autograd_graphs.MAX_NODES // 4) // 2
        best: tuple[tuple[int, int], Suspect] | None = None
        for rank in range(_MAX_ROOTS):
            yield from self.search.pause_if_due()
            if self.budget.is_over():
                break
            results = self._suspects_of_root(rank, min_nodes)
            if results is None:
                break
            for certainty, nodes, suspect in results:
                score = (certainty, nodes)
                if best is None or score > best[0]:
                    best = score, suspect
            if best is not None and best[0][0] > 0:
                break
        return [best[1]] if best else []

    def _suspects_of_root(self, rank: int, min_nodes: int) -> list[tuple[int, int, Suspect]] | None:
        """Return (certainty of the line, nodes, suspect) of the root of this rank.

        Certainties are 0 to 3. Returns None if there is no root of this rank.
        """
        tensors = census.live_tensors()
        roots = autograd_graphs.largest_roots(tensors, self.budget.is_slice_over)
        if rank >= len(roots) or roots[rank].nodes < min_nodes:
            return None
        root = roots[rank]
        for own_list in (tensors, roots):
            self.search.ignore(own_list)
        rate = max(self.measured_bytes_per_step or 0, self.unheld_bytes_per_step)
        rate = rate or autograd_graphs.saved_bytes(root.tensor) // self.steps
        if root.parameter is not None:
            suspects = self._suspect_gradient(root.parameter, rate)
            return [(3, root.nodes, suspect) for suspect in suspects]
        name = self.search.name(root.tensor).name
        if name is None or not name.is_in_script:
            return []
        line = next(iter(lines_of(self.scopes, name)), None)
        is_carried = line is not None and line.strength == GROWS
        kind: Kind = "graph" if root.tensor.numel() == 1 else "hidden_state"
        text = f"{name.expression}: graph of {root.nodes:,} nodes"
        suspect = _suspect(name, line, text, kind, rate, 0.9 if is_carried else 0.4)
        return [(2 * is_carried, root.nodes, suspect)]

    def _suspect_gradient(self, parameter: Any, rate: int | None) -> list[Suspect]:
        """Return the line that makes gradients keep a graph, by its `create_graph=True`."""
        name = self.search.name(parameter).name if parameter is not None else None
        text = "gradients that keep their graph"
        if name is not None:
            text = f"{name.expression}.grad: gradient with a graph"
        for file in self.scopes.files:
            for line in source_lines.calls_with(file, "create_graph"):
                gradient = ObjectName(text, (), line.file, line.function)
                return [_suspect(gradient, line, text, "gradient", rate, 0.8)]
        return []

    # -- 4. tensors that become longer ------------------------------------------------------

    def suspects_of_lengthening(self, item: LengtheningTensor) -> list[Suspect]:
        """Return a suspect only if a line computes the tensor from itself.

        Without that, batches of random lengths would look the same.
        """
        tensor = next(iter(present(item.tensors)), None)
        tensor = item.find_now() if tensor is None else tensor
        if tensor is None:
            return []
        holder = self.search.name(tensor)
        name = holder.name
        if name is None:
            return []
        lines = [line for line in lines_of(self.scopes, name) if line.strength == GROWS]
        if not lines:
            return []
        line = next((line for line in lines if line.uses_itself), lines[0])
        owners = [*map(type, holder.above), *([name.owner] if name.owner is not None else [])]
        kind: Kind = "buffer" if any(map(is_module_class, owners)) else "variable"
        text = f"{name.expression}: tensor of {' x '.join(map(str, tensor.shape))}"
        return [_suspect(name, line, text, kind, item.bytes_per_step, 0.9)]


def _frees_most(survivors: Sequence[Any], growths: Sequence[GroupGrowth]) -> bool:
    """Return True if the garbage collector frees most survivors of a group. Clears all groups."""
    references = [weakref.ref(tensor) for tensor in present(survivors)]
    for group in growths:
        group.survivors.clear()
    gc.collect()
    return 2 * sum(reference() is None for reference in references) >= len(references)


def _is_connected(holder: HolderPath) -> bool:
    """Return True if the container still leads to the tensors."""
    way = (holder.container, *holder.below)
    return all(
        any(part is inner for part in gc.get_referents(outer)) for outer, inner in pairwise(way)
    )


# -- lines --------------------------------------------------------------------------------------


def suspects_of_containers(
    growing: Sequence[GrowingContainer], budget: TimeBudget
) -> list[Suspect]:
    """Return the containers that have a name and a line in the script, most bytes first."""
    scopes = UserScopes()
    search = ReferrerSearch(scopes, {id(growing)}, budget)
    suspects = []
    try:
        for item in growing[:_MAX_CONTAINERS]:
            if budget.is_over():
                break
            holder = search.name(item.container)
            if holder.name is None or not holder.name.is_in_script or not can_grow(holder):
                continue
            line = line_of_holder(scopes, holder, "host")
            line = line or origins.creating_line(holder, scopes.files)
            if line is not None:
                container = describe_container(item.container, "host")
                text = f"{holder.name.expression}: {container}"
                certainty = _HOST_CONFIDENCE * CERTAINTIES[line.strength]
                rate = item.bytes_per_step
                suspects.append(_suspect(holder.name, line, text, "host", rate, certainty))
    finally:
        search.close()
    return _rank(suspects)


def line_of_holder(scopes: UserScopes, holder: HolderPath, kind: Kind) -> SourceLine | None:
    """Return the line that fills a named holder, else its origin."""
    if holder.name is None:
        return None
    line = _line_that_fills(scopes, holder.name, kind)
    if line is None or line.strength < PASSES:
        line = origins.origin_line(holder, scopes.files) or line
    return line


def _line_that_fills(scopes: UserScopes, name: ObjectName, kind: Kind) -> SourceLine | None:
    if kind == "cache" and name.code is not None:
        first = name.code.co_firstlineno
        return SourceLine(name.file, first, name.function, GROWS, in_loop=False, text="")
    if kind == "hook":
        calls = (line for file in scopes.files for line in source_lines.hook_calls(file))
        return next(calls, None)
    return next(iter(lines_of(scopes, name)), None)


def lines_of(scopes: UserScopes, name: ObjectName) -> list[SourceLine]:
    """Return the lines that make a named object grow, surest first.

    Looks in its owner first, then in the rest of its file, then in the script's other files.
    """
    where: list[SourceScope] = []
    if name.owner is not None:
        bases = filter(is_script_class, name.owner.__mro__)
        where += [SourceScope(file_of(base) or name.file, None, base.__name__) for base in bases]
    elif name.code is not None and is_script(name.file):
        where.append(SourceScope(name.file, name.code.co_firstlineno))
    files = dict.fromkeys([name.file, *scopes.files])
    where += [SourceScope(file) for file in files if is_script(file)]
    lines = growing_lines(where[:1], name.identifiers[:1]) if where else []
    if not any(line.strength == GROWS for line in lines):
        lines = growing_lines(where[:_MAX_SCOPES], name.identifiers)
    return lines


def _suspect(
    name: ObjectName,
    line: SourceLine | None,
    holder: str,
    kind: Kind,
    rate: int | None,
    confidence: float,
) -> Suspect:
    """Return a suspect at `line`, or less surely at the function that has the name."""
    if line is None:
        first = name.code.co_firstlineno if name.code else 0
        return build_suspect(name.file, first, name.function, holder, kind, rate, confidence * 0.7)
    return build_suspect(line.file, line.line, line.function, holder, kind, rate, confidence)


def _sample(survivors: Sequence[Any]) -> list[Any]:
    """Return a sample spread over all, so that containers filled in turn are found as one."""
    stride = max(1, len(survivors) // _SAMPLE_SIZE)
    return list(survivors[::stride][:_SAMPLE_SIZE])
