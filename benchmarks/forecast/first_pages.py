"""False pages and missed deaths by program: `python -m benchmarks.forecast.first_pages`.

Only of programs that may be looked at. Columns are medians at the first page.

`paged` or `missed`: share of the program's runs. `life`: share of the run. `lasted`: steps since
the growth began. `ahead`: steps left, over those. `rises`: share of those steps after which more
was allocated than after the one before: few are jumps. `room`: what was never used of the limit,
by the device. `known`: what the page was told of the growth (`Evidence`). `told`: the highest level
in a run that wasn't warned in time.
"""

from __future__ import annotations

import argparse
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import pairwise
from typing import NamedTuple

from benchmarks.forecast import gpu_recorded, mechanisms, programs, simulated
from benchmarks.forecast.baselines import Finder, feed, oracle
from benchmarks.forecast.finder_results import measured
from benchmarks.forecast.gpu_programs import GPU_PROGRAMS
from benchmarks.forecast.program_set import Kind
from benchmarks.forecast.score import ENOUGH_LIFE, ENOUGH_STEPS
from benchmarks.forecast.traces import Trace
from memagent.forecast import Forecast
from memagent.forecast.types import LEVELS, PAGING_LEVELS, Level

TUNED_ON = "tuned on"
EACH, SEED = 8, 7
FINDERS: dict[str, Finder | None] = {"series alone": None, "finder": measured, "oracle": oracle}
NUMBERS = ("life", "lasted", "ahead", "rises", "room")


class Page(NamedTuple):
    """The first page of a run; see the module's columns."""

    life: float
    lasted: float
    ahead: float
    rises: float
    room: float
    cause: str
    known: str


class Outcome(NamedTuple):
    """A run, as far as its pages are concerned. `page` is None without one."""

    family: str
    is_dying: bool
    is_wrong: bool
    """Paged without need, or not warned in time."""
    page: Page | None
    told: Level


def main(only: str, each: int) -> None:
    with ProcessPoolExecutor() as pool:
        parts = list(pool.map(partial(_of_kind, each=each), _kinds(only)))
    recorded = [run for title, runs in gpu_recorded.sets(GPU_PROGRAMS) if TUNED_ON in title for run in runs]  # fmt: skip
    if only in "recorded":
        parts.append(_by_finder(recorded))
    for name in FINDERS:
        outcomes = [outcome for part in parts for outcome in part[name]]
        print(f"== {name}\n{table(outcomes)}\n", flush=True)


def _kinds(only: str) -> list[Kind]:
    sets = {"programs": programs.PROGRAMS, "mechanisms": mechanisms.MECHANISMS}
    return [kind for name, one in sets.items() if only in name for kind in one.split()[TUNED_ON]]


def _of_kind(kind: Kind, each: int) -> dict[str, list[Outcome]]:
    return _by_finder(list(simulated.traces([kind], each, SEED)))


def _by_finder(runs: Sequence[Trace]) -> dict[str, list[Outcome]]:
    return {name: [outcome(run, finder) for run in runs] for name, finder in FINDERS.items()}


def outcome(run: Trace, finder: Finder | None = None) -> Outcome:
    """Return what became of a run's pages."""
    page, step, told = None, None, LEVELS[0]
    for forecaster, forecast in feed(run, finder=finder):
        told = max(told, forecast.level, key=LEVELS.index)
        if forecast.level in PAGING_LEVELS:
            evidence = forecaster.evidence
            step, page = forecast.step, _page(run, forecast, evidence[0] if evidence else "a peak")
            break
    if run.death is None:
        return Outcome(run.family, is_dying=False, is_wrong=page is not None, page=page, told=told)
    left = 0 if step is None else run.death - step
    is_late = run.trending and left < max(ENOUGH_STEPS, ENOUGH_LIFE * run.death)
    return Outcome(run.family, is_dying=True, is_wrong=is_late, page=page, told=told)


def _page(run: Trace, forecast: Forecast, known: str) -> Page:
    rows = len(run.columns["step"])
    held = run.columns.get("allocated_bytes") or run.columns["device_used_bytes"]
    used = run.columns.get("device_used_bytes") or held
    since = forecast.growing_since_step or 0
    lasted = max(1, forecast.step - since)
    rises = sum(after > before for before, after in pairwise(held[since : forecast.step + 1]))
    ahead = ((forecast.eta_step or forecast.step) - forecast.step) / lasted
    room = 1 - max(used) / run.limit_bytes
    return Page(
        forecast.step / rows, lasted, ahead, rises / lasted, room, forecast.cause or "", known
    )


def table(outcomes: Iterable[Outcome]) -> str:
    """Format the programs whose pages are wrong, those with most of them first."""
    families: dict[tuple[bool, str], list[Outcome]] = defaultdict(list)
    for one in outcomes:
        families[one.is_dying, one.family].append(one)
    lines = []
    for is_dying in (False, True):
        members = {name: runs for (dies, name), runs in families.items() if dies == is_dying}
        wrong, runs = sum(_wrong(of) for of in members.values()), sum(map(len, members.values()))
        lines.append(f"{'missed' if is_dying else 'paged'}: {wrong} of {runs} runs")
        ordered = sorted(members.items(), key=lambda item: (-_wrong(item[1]), item[0]))
        lines += [line for name, of in ordered if _wrong(of) for line in _lines(name, of)]
    return "\n".join(lines)


def _wrong(runs: Sequence[Outcome]) -> int:
    return sum(run.is_wrong for run in runs)


def _lines(name: str, runs: Sequence[Outcome]) -> Iterator[str]:
    pages = [run.page for run in runs if run.is_wrong and run.page]
    cells = [f"{field} {statistics.median(getattr(page, field) for page in pages):.2f}" for field in NUMBERS if pages]  # fmt: skip
    reasons = Counter(f"{page.cause}/{page.known}" for page in pages)
    told = Counter(run.told for run in runs if run.is_wrong and run.is_dying)
    counts = [f"{count} {what}" for what, count in (*reasons.items(), *told.items())]
    yield f"   {name:40} {_wrong(runs)}/{len(runs)}  {'  '.join((*cells, *counts))}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--only", default="", metavar="TEXT", help="programs, mechanisms or recorded"
    )
    parser.add_argument("--each", type=int, default=EACH, help="runs of each simulated program")
    arguments = parser.parse_args()
    main(arguments.only, arguments.each)
