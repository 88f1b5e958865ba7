"""Suspects of host memory, from a trace of Python's allocations and from growing containers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from msgspec.structs import replace

from memagent.leaks.census import MIN_SHARE
from memagent.leaks.detectors.base import CodePosition
from memagent.leaks.keeping_statements import keeper_at
from memagent.leaks.pattern_fixes import with_call_fix
from memagent.leaks.source_lines import (
    GROWS,
    code_text,
    lengthens,
    lines_of_later_uses,
    source_line,
)
from memagent.leaks.suspect import build_suspect
from memagent.leaks.user_code import running_code
from memagent.wire.messages import Suspect

MIN_BYTES_PER_STEP = 2048
"""The agent's own rows take up to as much."""
MIN_GROWTH_SHARE = 0.1
"""Share of all growth below which what grows isn't worth a word."""
MAX_LAST_RATIO = 1.5
"""Largest ratio of what a line allocated in the last step to its growth per step."""
_MAX_SUSPECTS = 3
_MAX_HOLDER = 100
UNHELD_CONFIDENCE = 0.45
"""Confidence in a line whose objects have an unknown holder: a list of fixed size may fill up."""


def with_rates_up_to(max_rate: float, suspects: Sequence[Suspect]) -> list[Suspect]:
    """Return suspects with at most the growth of all that is allocated.

    Each entry of a container counts with all that the entries share: the state of an
    ORM's object leads to its session. Growth of a fraction of its rate looks like its end.
    """
    return [
        replace(item, bytes_per_step=max(1, round(max_rate))) if rate_of(item) > max_rate else item
        for item in suspects
    ]


def with_native(others: list[Suspect], native: list[Suspect]) -> list[Suspect]:
    """Return suspects with those of native memory if it grows by more than the others."""
    known = sum(item.bytes_per_step or 0 for item in others)
    more = [item for item in native if (item.bytes_per_step or 0) > known]
    places = {(item.file, item.line) for item in more}
    return [*more, *(item for item in others if (item.file, item.line) not in places)]


def growing_lines(
    first: Counter[CodePosition], last: Counter[CodePosition], steps: int, first_steps: int = 0
) -> list[Suspect]:
    """Return the lines that hold more than before, most bytes first.

    first_steps: steps in which `first` was allocated. A line that held much less by then has made
    something once, such as the order of an epoch.
    """
    growth = last.copy()
    growth.subtract(first)
    suspects = []
    for (file, line), size in growth.most_common(_MAX_SUSPECTS):
        rate = size // max(1, steps)
        is_steady = first[file, line] >= MIN_SHARE * rate * first_steps
        if rate >= MIN_BYTES_PER_STEP and is_steady:
            holder = code_text(file, line)[:120] or "Python objects"
            suspects.append(
                build_suspect(file, line, None, holder, "host", rate, UNHELD_CONFIDENCE)
            )
    return suspects


def lasting_lines(
    lines: Sequence[Suspect],
    last_step: Mapping[CodePosition, int],
    replaces: Callable[[Suspect], bool],
) -> list[Suspect]:
    """Return the lines that hold about as much of the last step as they do of each step.

    Those that lengthen a string or an array hold all of it. What is stored by key may replace items
    that weren't traced: only its container tells. replaces: returns True if a line may do so.
    """
    codes = [reading.code for reading in running_code()] if lines else []
    return [
        item
        for item in lines
        if not replaces(item)
        and (
            last_step.get((item.file, item.line), 0) <= MAX_LAST_RATIO * (item.bytes_per_step or 0)
            or lengthens(
                item.file,
                item.line,
                {code.co_firstlineno for code in codes if code.co_filename == item.file},
            )
        )
    ]


def most_specific(
    containers: list[Suspect], lines: list[Suspect], holders: Mapping[CodePosition, Suspect | None]
) -> list[Suspect]:
    """Return the containers alone if they explain most of what the lines allocate.

    Else also the lines, or what keeps the objects that they make, unless that can't grow.
    """
    keepers: dict[CodePosition, Suspect] = {}
    for item in lines:
        keeper = _keeper(item, containers, holders)
        if keeper is not None:
            place = keeper.file, keeper.line
            known = keepers.get(place)
            better = known if known is not None and keeper is item else keeper
            keepers[place] = replace(better, bytes_per_step=rate_of(item) + rate_of(known))
    places = {(item.file, item.line) for item in containers}
    rate, total_rate = (sum(map(rate_of, items)) for items in (containers, keepers.values()))
    if 2 * rate >= total_rate or places.issuperset(keepers):
        return containers
    rest = [item for item in containers if (item.file, item.line) not in keepers]
    main = [item for item in keepers.values() if rate_of(item) >= MIN_GROWTH_SHARE * total_rate]
    return [*main, *rest]


def _keeper(
    item: Suspect, containers: Sequence[Suspect], holders: Mapping[CodePosition, Suspect | None]
) -> Suspect | None:
    """Return what keeps the objects of a line, itself if that's unknown, None if it can't grow.

    A later line of the same function may put them into what is known: `rows.append(row)`.
    """
    site = item.file, item.line or 0
    if site in holders:
        return holders[site]
    suspects = (*filter(None, holders.values()), *containers)
    known = {**holders, **{(suspect.file, suspect.line): suspect for suspect in suspects}}
    uses = lines_of_later_uses(*site)
    for line in uses:
        if (item.file, line.line) in known:
            return known[item.file, line.line]
    call = next((line for line in uses if line.keeps), None)
    if call is None:
        keeper = _kept_by_source(item)
        # what a search has found there says more, such as a chain
        return known.get((keeper.file, keeper.line), keeper)
    keeper = build_suspect(call.file, call.line, call.function, call.text, "host", None, 0.6)
    return with_call_fix(keeper, call.text)


def _kept_by_source(item: Suspect) -> Suspect:
    """Return a line without a holder as the one that adds what it makes to something lasting."""
    keeper = keeper_at(item.file, item.line or 0)
    if keeper is None:
        return item
    statement, holder = keeper
    line = source_line(statement.file, statement.node, GROWS, statement.parents)
    text = f"{holder[:_MAX_HOLDER]}: Python objects"
    return build_suspect(line.file, line.line, line.function, text, "host", None, item.confidence)


def rate_of(suspect: Suspect | None) -> float:
    return 0 if suspect is None else suspect.bytes_per_step or 0
