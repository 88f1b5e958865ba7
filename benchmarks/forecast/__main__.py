"""Command line. See `benchmarks.forecast`."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path

import benchmarks.forecast
from benchmarks.forecast import (
    generated,
    generator,
    gpu_recorded,
    recorded,
    reruns,
    series,
    simulated,
)
from benchmarks.forecast.baselines import DETECTORS, WITH_PREDECESSOR
from benchmarks.forecast.gpu_programs import GPU_PROGRAMS
from benchmarks.forecast.mechanisms import MECHANISMS
from benchmarks.forecast.programs import PROGRAMS
from benchmarks.forecast.score import Score, score, table
from benchmarks.forecast.traces import Trace

EACH, EACH_QUICK = 40, 4
GENERATED, GENERATED_QUICK = 330, 33
SIMULATED, SIMULATED_QUICK = 8, 1
STRIDE_QUICK = 10
HELD_OUT = "held out"
TraceMaker = Callable[[], Iterable[Trace]]
ROOM = (1.4, 2.0)
"""Limits of harmless runs over their own, of which they use 90 to 99.5 %."""


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.forecast", description=benchmarks.forecast.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument(
        "--quick", action="store_true", help="few traces: shows that it works, not how well"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures here")
    parser.add_argument(
        "--bench", type=Path, metavar="PATH", help="folder of a generator of labelled traces"
    )
    parser.add_argument(
        "--series", type=Path, metavar="PATH", help="folder of readings of real runs; no other set"
    )
    parser.add_argument(
        "--only", default="", metavar="TEXT", help="sets whose title holds this, such as `held out`"
    )
    parser.add_argument("--seed", type=int, default=7)
    arguments = parser.parse_args()
    results: dict[str, list[Score]] = {}
    if arguments.series:
        sets = series.sets(arguments.series, arguments.seed)
    else:
        made = _sets(arguments.bench, arguments.seed, quick=arguments.quick)
        selected = ((title, make) for title, make in made if arguments.only in title)
        sets = _with_room(selected, quick=arguments.quick)
    for title, traces in sets:
        is_of_reruns = any(trace.predecessor for trace in traces)
        detectors = DETECTORS | (WITH_PREDECESSOR if is_of_reruns else {})
        results[title] = [score(name, detector, traces) for name, detector in detectors.items()]
        died = sum(trace.death is not None for trace in traces)
        print(
            f"== {title}: {len(traces)} traces, {died} of them die\n{table(results[title])}\n",
            flush=True,
        )
    if arguments.json:
        sets = {title: [one.to_dict() for one in scores] for title, scores in results.items()}
        arguments.json.write_text(
            json.dumps({"seed": arguments.seed, "quick": arguments.quick, "sets": sets}, indent=2)
            + "\n"
        )


def _with_room(
    sets: Iterable[tuple[str, TraceMaker]], *, quick: bool
) -> Iterator[tuple[str, list[Trace]]]:
    """Yield the sets, then the harmless runs of those held out under larger limits."""
    harmless: list[Trace] = []
    for title, make in sets:
        traces = list(make())
        if HELD_OUT in title and "reruns" not in title:
            harmless += [trace for trace in traces if trace.death is None]
        yield title, traces
    for factor in ROOM if harmless else ():
        yield (
            f"harmless, {HELD_OUT}, {factor} times the limit",
            [trace.with_room(factor) for trace in harmless[:: STRIDE_QUICK if quick else 1]],
        )


def _sets(bench: Path | None, seed: int, *, quick: bool) -> Iterator[tuple[str, TraceMaker]]:
    """Yield each set's title, and what makes its traces."""
    if bench:
        count = GENERATED_QUICK if quick else GENERATED
        yield f"generator, seed {seed}", partial(generator.traces, bench, count, seed)
    yield f"made, seed {seed}", partial(generated.traces, EACH_QUICK if quick else EACH, seed)
    each, stride = (SIMULATED_QUICK, STRIDE_QUICK) if quick else (SIMULATED, 1)
    for name, program_set in {"programs": PROGRAMS, "mechanisms": MECHANISMS}.items():
        for title, kinds in program_set.split().items():
            runs = partial(simulated.traces, kinds[::stride], each, seed)
            yield f"simulated {name}, {title}, seed {seed}", runs
    for half in PROGRAMS.split():
        kinds = [*PROGRAMS.split()[half], *MECHANISMS.split()[half]][::stride]
        yield f"reruns, {half}, seed {seed}", partial(reruns.traces, kinds, each, seed)
        yield f"changed reruns, {half}, seed {seed}", partial(reruns.changed, kinds, each, seed)
    yield "recorded", recorded.traces
    for title, runs in gpu_recorded.sets(GPU_PROGRAMS):
        yield title, partial(iter, runs[::stride])


if __name__ == "__main__":
    main()
