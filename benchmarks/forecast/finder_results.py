"""Verdicts of the product's leak finder on programs, recorded by `finder_record.py`.

1. `measured` gives a trace the verdicts from a run of the same program. For one that wasn't
   run, it draws a run whose program keeps the same and ends alike, from the same half.
2. The first verdict comes as many steps after the request as it did there, later ones at the same
   multiple of that step: a diagnosis is repeated when a run is twice as long.
3. `table` compares all verdicts with the truth.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.forecast.gpu_programs import GPU_PROGRAMS
from benchmarks.forecast.mechanisms import MECHANISMS
from benchmarks.forecast.programs import PROGRAMS
from benchmarks.forecast.traces import Trace, Verdict
from memagent.forecast.types import GROWING

FILE = Path(__file__).with_name("finder_results.jsonl")
HELD_OUT = "held out"


@dataclass(frozen=True)
class FinderRun:
    """Run of a program with memagent attached. Steps count from its first row.

    verdicts: from the first request on. requested: row of that, None if there was
    none. has_died: without memagent. notice, page: rows of the first ones on the terminal.
    """

    program: str
    truth: str | None
    has_died: bool
    limit: int
    rows: int
    verdicts: tuple[Verdict, ...]
    notice: int | None
    page: int | None

    @property
    def requested(self) -> int | None:
        return self.verdicts[0].row if self.verdicts else None

    @property
    def first(self) -> Verdict | None:
        """Return the first verdict that names a kind."""
        return next((item for item in self.verdicts if item.grows != "unknown"), None)

    @property
    def is_before_heard(self) -> bool:
        """Return True if the first verdict came before a notice and a page."""
        heard = min((row for row in (self.notice, self.page) if row is not None), default=None)
        return self.first is not None and (heard is None or self.first.row <= heard)


def measured(trace: Trace, requested: int, _window: int = 0) -> list[Verdict]:
    """Return the verdicts after a request at this row (1, 2)."""
    run = _run_of(trace)
    if run is None or run.requested is None:
        return []
    first = run.first.row if run.first else run.verdicts[-1].row
    came = requested + max(1, first - run.requested)
    return [
        Verdict(
            round(item.row * came / first) if item.row > first else requested + item.row - run.requested,
            item.grows,
            item.rest,
        )
        for item in run.verdicts
    ]  # fmt: skip


def _run_of(trace: Trace) -> FinderRun | None:
    of_program = [run for run in runs() if run.program == trace.family]
    same = [run for run in of_program if run.limit == trace.limit_bytes]
    source = random.Random(trace.limit_bytes)
    has_died = trace.death is not None
    if same or of_program:
        return source.choice(same or of_program)
    alike = [
        run
        for run in runs()
        if (run.truth, run.has_died) == (trace.grows, has_died)
        and (run.program in _held_out()) == (trace.family in _held_out())
    ]
    return source.choice(alike) if alike else None


@cache
def runs() -> tuple[FinderRun, ...]:
    return tuple(read(FILE))


@cache
def _held_out() -> frozenset[str]:
    sets = (GPU_PROGRAMS, PROGRAMS, MECHANISMS)
    return frozenset(kind.name for one in sets for kind in one.split()[HELD_OUT])


def read(file: Path) -> Iterator[FinderRun]:
    """Return the runs of a file."""
    with file.open() as lines:
        yield from (_run(json.loads(line)) for line in lines)


def _run(line: dict[str, Any]) -> FinderRun:
    return FinderRun(
        line["program"], line["truth"], line["cause"] is not None, line["limit"], line["rows"],
        tuple(Verdict(*item) for item in line["found"]), line["notice"], line["page"],
    )  # fmt: skip


# -- the table ----------------------------------------------------------------------------------


def table(results: Sequence[FinderRun]) -> str:
    """Format verdicts by what a program keeps, then by the halves of the programs."""
    heads = [*GROWING, "not asked"]
    lines = [_row("keeps", ["runs", *heads, "steps", "before"])]
    for half in ("all", HELD_OUT):
        chosen = [run for run in results if half == "all" or run.program in _held_out()]
        lines.append(f"{half}:")
        groups = Counter((run.truth or "nothing", run.has_died) for run in chosen)
        for (truth, has_died), count in sorted(groups.items()):
            members = [
                run for run in chosen if (run.truth or "nothing", run.has_died) == (truth, has_died)
            ]
            said = Counter(_said(run) for run in members)
            delays = [run.first.row - (run.requested or 0) for run in members if run.first]
            before = sum(run.is_before_heard for run in members)
            cells = [str(count), *(str(said[head] or "") for head in heads)]
            cells += [f"{median(delays):.0f}" if delays else "", str(before)]
            lines.append(_row(f"  {truth}, {'dies' if has_died else 'lives'}", cells))
    return "\n".join(lines)


def _said(run: FinderRun) -> str:
    """Return the newest verdict of a run that names a kind."""
    if run.requested is None:
        return "not asked"
    said = [item.grows for item in run.verdicts if item.grows != "unknown"]
    return said[-1] if said else "unknown"


def _row(head: str, cells: Sequence[str]) -> str:
    return f"{head:18}" + "".join(cell.rjust(10) for cell in cells)
