"""Diagnosis: from two censuses to suspects.

1. For tensors that survived and became more: what holds them (`group_suspects`).
2. For a graph that grew and isn't explained yet, and for tensors that become longer: what is
   carried from step to step (`carried_tensors`).
3. For tensors that nothing explains: reference cycles (`cycle_suspects`).

The comparison is made at once; the searches are cut into slices between steps. Where a generator
yields, its frame must not hold an object of the script: only lists that the search knows may.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from memagent.leaks import autograd_graphs, census
from memagent.leaks.carried_tensors import GraphGrowth, suspects_of_graphs, suspects_of_lengthening
from memagent.leaks.census import Census, GroupCount, GroupGrowth
from memagent.leaks.cycle_suspects import suspects_of_cycles
from memagent.leaks.detectors.base import CodePosition, Work
from memagent.leaks.free_memory import BoundCheck
from memagent.leaks.group_suspects import GroupSearch
from memagent.leaks.lengthening import LengtheningTensor, lengthening_tensors
from memagent.leaks.referrers import ReferrerSearch
from memagent.leaks.suspect import rank_suspects, scale_confidence, with_sums
from memagent.leaks.time_budgets import TimeBudget
from memagent.leaks.user_code import UserScopes
from memagent.wire.messages import Suspect

MAX_SEARCH_CPU_S = 10.0
"""Processor time of one detector's search beyond that of the readings before it."""
_CUT_SHORT_CONFIDENCE = 0.7
"""Confidence factor for a diagnosis that was cut short."""
_MAX_GROUPS = 4
_SURE = 0.5
"""Confidence of a suspect from which no graph is searched for."""


def diagnose(
    first: Census,
    before_last: Census,
    step: int,
    tensors: list[Any],
    budget: TimeBudget,
    *,
    middle: Census | None = None,
    measured_bytes_per_step: int | None = None,
    sites: Mapping[CodePosition, float] | None = None,
    bounds: BoundCheck | None = None,
    registered: Mapping[int, CodePosition] | None = None,
) -> Work[tuple[list[Suspect], tuple[GroupCount, ...]]]:
    """Return what holds the growth between `first` and now, most likely first, and what grew.

    before_last: a census from one step ago. middle: one from halfway. measured_bytes_per_step:
    growth as the device or the host reports it. sites: the tensors per step that remain of each
    line. bounds: notes what fills up. registered: see `registrations`. If the budget ends early,
    suspects are missing, and the others are less sure. Leaves no references behind, neither in the
    end nor between slices.
    """
    last = census.take(step, tensors, autograd_graphs.count_nodes(tensors), before_last)
    growths = census.growing_groups(first, before_last, last, tensors, middle)[:_MAX_GROUPS]
    longer = lengthening_tensors(first, before_last, last, tensors, middle)[:_MAX_GROUPS]
    more_nodes = _more_nodes(first, middle, last)
    steps = max(1, last.step - first.step)
    counts = census.group_counts(growths, first, middle, last)
    if not growths and not longer and more_nodes < steps // 2:
        return [], counts
    search = ReferrerSearch(UserScopes(), {id(growths)}, budget)
    old_storages = {entry.storage for entry in first.entries.values()}
    bounds = bounds or BoundCheck()
    case = GroupSearch(
        search,
        budget,
        steps,
        measured_bytes_per_step,
        old_storages,
        sites or {},
        bounds,
        registered or {},
    )
    # These lists refer to the tensors as well, and must not be found as their holders.
    for growth in growths:
        search.hold(growth.survivors)
    for item in longer:
        search.hold(item.tensors)
    del tensors
    try:
        suspects = yield from _search_all(case, growths, longer, more_nodes, middle)
    finally:
        search.close()
    if budget.was_hit:
        suspects = [scale_confidence(suspect, _CUT_SHORT_CONFIDENCE) for suspect in suspects]
    return rank_suspects(with_sums(suspects, measured_bytes_per_step or 0)), counts


def _search_all(
    case: GroupSearch,
    growths: Sequence[GroupGrowth],
    longer: Sequence[LengtheningTensor],
    more_nodes: int,
    middle: Census | None,
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
            suspects += suspects_of_lengthening(search, budget, item, case.bounds)
    for growth in growths:
        yield from search.pause_if_due()
        if not growth.is_renewed and not budget.is_over():
            suspects += yield from case.suspects_of_group(growth)
    is_explained = any(map(_explains_graphs, suspects))
    if more_nodes >= max(2, case.steps // 2) and not is_explained:
        yield from search.pause_if_due()
        rate = max(case.measured_bytes_per_step or 0, case.unheld_bytes_per_step)
        middle_node = middle.newest_node if middle is not None else 0
        graphs = GraphGrowth(more_nodes, case.steps, rate, middle_node)
        suspects = (yield from suspects_of_graphs(search, budget, graphs)) or suspects
    if not suspects and case.unheld_bytes_per_step:
        yield from search.pause_if_due()
        rate = case.unheld_bytes_per_step
        suspects += yield from suspects_of_cycles(search, growths, case.steps, rate)
    return suspects


def _explains_graphs(suspect: Suspect) -> bool:
    """Return False for what is unsure, and where tensors are made: it doesn't tell what holds them.

    Tensors of a graph may be of the same group as those of a short queue.
    """
    is_sure = suspect.confidence >= _SURE
    return is_sure and suspect.kind not in ("cycle", "allocation")


def _more_nodes(first: Census, middle: Census | None, last: Census) -> int:
    """Return by how much the graphs grew, 0 if they didn't in both halves.

    A graph that is cut every few steps is larger at one of them than at another.
    """
    more = last.nodes - first.nodes
    if middle is None or last.nodes >= autograd_graphs.MAX_NODES:
        return more
    halves = middle.nodes - first.nodes, last.nodes - middle.nodes
    return more if min(halves) >= more / 4 else 0
