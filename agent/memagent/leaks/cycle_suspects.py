"""Suspects for tensors that no variable leads to: reference cycles, also through graphs."""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from memagent.leaks import origins
from memagent.leaks.census import GroupGrowth
from memagent.leaks.cycles import can_name_cycle, name_cycle
from memagent.leaks.cyclic_garbage import may_collect
from memagent.leaks.detectors.base import Work
from memagent.leaks.object_names import ObjectName
from memagent.leaks.referrers import ReferrerSearch
from memagent.leaks.source_lines import SourceLine
from memagent.leaks.suspect import suspect_at
from memagent.leaks.suspension import GONE, present
from memagent.wire.messages import Suspect

_MAX_KINDS = 8
_FIX_UNCOLLECTED = (
    "Break the cycle, or call `gc.collect()` now and then: the script has switched the collector "
    "off, so nothing else frees it."
)


def suspects_of_cycles(
    search: ReferrerSearch, growths: Sequence[GroupGrowth], steps: int, rate: int
) -> Work[list[Suspect]]:
    """Name what refers to tensors that no variable leads to, then collect garbage.

    What it frees was in a reference cycle. What stays is held by C++, such as a graph whose
    hook refers to the object that keeps the graph. rate: bytes per step of such tensors.
    """
    for growth in growths:
        growth.survivors[:] = present(growth.survivors)
        if len(growth.survivors) < 0.8 * steps:
            continue  # the collector has freed some of it, and will again
        named, is_cycle = yield from _named_in(search, growth.survivors)
        if named is None:
            continue
        yield from search.pause_if_due()
        search.close()
        name, line = named
        if is_cycle and not may_collect():  # the script's garbage stays
            growth.survivors.clear()
            text = f"{name.expression}: reference cycle"
            suspect = suspect_at(name, line, text, "cycle", rate, 0.7)
            return [replace(suspect, fix=_FIX_UNCOLLECTED)]
        is_freed = _frees_most(growth.survivors, growths)
        if is_freed and is_cycle:
            text = f"{name.expression}: reference cycle"
            return [suspect_at(name, line, text, "cycle", rate, 0.7)]
        if not is_freed and not is_cycle:
            text = f"{name.expression}: held by a graph"
            return [suspect_at(name, line, text, "object", rate, 0.5)]
        break
    return []


def _named_in(
    search: ReferrerSearch, survivors: list[Any]
) -> Work[tuple[tuple[ObjectName, SourceLine | None] | None, bool]]:
    """Return what closes a cycle with one of the tensors and True, else their attribute."""
    for place in _newest_of_each_kind(survivors):
        if search.budget.is_over() or survivors[place] is GONE:
            continue
        referrers = yield from search.referrers_until(survivors[place], can_name_cycle)
        cycle = name_cycle(present(referrers))
        search.clear()
        if cycle is not None:
            return cycle, True
        if survivors[place] is GONE:
            continue
        if (named := _attribute_of(search, survivors[place])) is not None:
            return named, False
    return None, False


def _attribute_of(search: ReferrerSearch, tensor: Any) -> tuple[ObjectName, SourceLine] | None:
    """Return the attribute of a script's object that holds a tensor, with its line."""
    name = search.name(tensor).name
    search.clear()
    if name is None or name.owner is None or not name.is_in_script:
        return None
    line = next(iter(origins.lines_of(search.scopes, name)), None)
    return None if line is None else (name, line)


def _newest_of_each_kind(tensors: Sequence[Any]) -> list[int]:
    """Return the places of a few tensors that may be kept in different ways, newest first.

    Those that require a gradient come before the others, as only their graphs hide cycles.
    """
    kinds: dict[tuple[bool, tuple[int, ...]], int] = {}
    # a subclass or mode of the script must not see these calls
    with sys.modules["torch"]._C.DisableTorchFunction():
        for place in reversed(range(len(tensors))):
            tensor = tensors[place]
            if tensor is not GONE:
                kinds.setdefault((not tensor.requires_grad, tuple(tensor.shape)), place)
    return [kinds[kind] for kind in sorted(kinds, key=lambda kind: kind[0])][:_MAX_KINDS]


def _frees_most(survivors: Sequence[Any], growths: Sequence[GroupGrowth]) -> bool:
    """Return True if the garbage collector frees most survivors of a group. Clears all groups."""
    references = [weakref.ref(tensor) for tensor in present(survivors)]
    for group in growths:
        group.survivors.clear()
    gc.collect()
    return 2 * sum(reference() is None for reference in references) >= len(references)
