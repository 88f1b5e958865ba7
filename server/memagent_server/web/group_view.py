"""Groups of runs as rows of a table, each with the filter that finds its runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from typing import Any

from memagent.filters.columns import RUN_COLUMNS, column_of
from memagent.filters.expression import RunColumn
from memagent.filters.parser import MAX_LENGTH
from memagent.units import format_bytes
from memagent_server.schemas.run_groups import GroupFigure, RunGroup
from memagent_server.store.run_columns import spelling_of
from memagent_server.web.column_text import column_text, figure_text
from memagent_server.web.labels import Badge, status_badge

_TAGS = RunColumn("run", ("tags",))


@dataclass(frozen=True)
class GroupRow:
    """`where` is None if no filter finds the group: its values are lists, or the text is long."""

    name: str
    value: str
    level: int
    runs: int
    statuses: Sequence[Badge]
    """Numbers of runs by status, the most frequent first."""
    peak: str
    figures: Sequence[tuple[str, str]]
    """The mean, and the range if there is one."""
    where: str | None
    hidden: int
    """Subgroups that are left out."""


def group_rows(groups: Sequence[RunGroup], where: str | None) -> list[GroupRow]:
    """Return the rows of groups, whose runs a filter has chosen."""
    levels = [len(group.key) for group in groups]
    return [
        _row(group, where, group.groups - _children(levels, place))
        for place, group in enumerate(groups)
    ]


def narrowed(where: str | None, key: Mapping[str, Any]) -> str | None:
    """Return the filter that finds a group's runs; None if there is none."""
    terms = [_condition(column_of(name), value) for name, value in key.items()]
    known = [term for term in terms if term is not None]
    if len(known) < len(terms):
        return None
    # `and` binds closer than `or`
    before = [f"({where})" if " or " in where else where] if where else []
    text = " and ".join([*before, *known])
    return text if len(text) <= MAX_LENGTH else None


def _condition(column: RunColumn, value: Any) -> str | None:
    name = spelling_of(column)
    if column == _TAGS and isinstance(value, list):
        tags = [_constant(tag) for tag in value]
        return None if None in tags else " and ".join(f"{tag} in tags" for tag in tags)
    constant = _constant(value)
    return None if constant is None else f"{name} = {constant}"


def _constant(value: Any) -> str | None:
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    if isinstance(value, int | float):
        return repr(value) if isfinite(value) else None
    if not isinstance(value, str):
        return None
    # filters have no escapes: a text with both quotes can't be written
    quotes = [quote for quote in "\"'" if quote not in value]
    return f"{quotes[0]}{value}{quotes[0]}" if quotes else None


def _row(group: RunGroup, where: str | None, hidden: int) -> GroupRow:
    *_, (name, value) = group.key.items()
    counts = sorted(group.statuses.items(), key=lambda item: -item[1])
    return GroupRow(
        name=name,
        value=column_text(name, value),
        level=len(group.key) - 1,
        runs=group.runs,
        statuses=[_counted(status_badge(status), count) for status, count in counts],
        peak=format_bytes(group.peak_bytes.max) if group.peak_bytes.runs else "–",
        figures=[_figure(name, figure) for name, figure in group.columns.items()],
        where=narrowed(where, group.key),
        hidden=hidden,
    )


def _counted(badge: Badge, count: int) -> Badge:
    return replace(badge, text=f"{count:,} {badge.text}")


def _figure(name: str, figure: GroupFigure) -> tuple[str, str]:
    if figure.mean is None or figure.min is None or figure.max is None:
        more = f"and {figure.values - 1:,} more" if figure.values > 1 else ""
        return column_text(name, figure.commonest) if figure.values else "–", more
    low, high = _short(name, figure.min), _short(name, figure.max)
    return _short(name, figure.mean), "" if low == high else f"({low} to {high})"


def _short(name: str, value: float) -> str:
    # the same decimals in each row of a column
    if name == "peak_ratio":
        return f"{100 * value:.1f} %"
    if name in RUN_COLUMNS:
        return figure_text(name, value)
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:#.3g}".rstrip(".") if abs(value) >= 1 else f"{value:.3g}"


def _children(levels: Sequence[int], place: int) -> int:
    """Return how many of the rows after one are its subgroups."""
    children = 0
    for level in levels[place + 1 :]:
        if level <= levels[place]:
            break
        children += level == levels[place] + 1
    return children
