"""Holders of what a traced line makes: which of the candidates may keep more and more of it."""

from __future__ import annotations

import pytest

from memagent.leaks.free_memory import BoundCheck
from memagent.leaks.object_names import ObjectName
from memagent.leaks.referrers import HolderPath
from memagent.leaks.suspect import build_suspect
from memagent.leaks.traced_holders import holders_of_lines

TEXTS: dict[int, str] = {number: str(number) * 99 for number in range(50)}


def write(number: int) -> str:
    return f"{number}" * 99


def keep(number: int) -> None:
    TEXTS[number] = write(number)


WRITTEN = write.__code__.co_firstlineno + 1
STORED = keep.__code__.co_firstlineno + 1


@pytest.mark.parametrize(
    ("entries", "rate", "expected"),
    [(0, 100, {WRITTEN: None}), (0, 100_000, {}), (None, 100, {WRITTEN: STORED})],
    ids=["replaced", "more than the table holds", "made anew"],
)
def test_a_table_that_keeps_its_length_gets_nothing_more(
    entries: int | None, rate: int, expected: dict[int, int | None]
) -> None:
    """What a line makes takes the place of entries that weren't traced, as far as it fits."""
    name = ObjectName("TEXTS", ("TEXTS",), __file__, "<module>")
    table = HolderPath(TEXTS, 1.0, name, (), (), is_link=True)
    line = build_suspect(__file__, WRITTEN, "write", "text", "host", rate, 0.45)
    site = __file__, WRITTEN
    holders = holders_of_lines([line], {site: [table]}, BoundCheck(), lambda _: entries, steps=20)
    lines = {number: item and item.line for (_, number), item in holders.items()}
    assert lines == expected
