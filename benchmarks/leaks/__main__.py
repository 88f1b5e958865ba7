"""Command line. See `benchmarks.leaks`."""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch

import benchmarks.leaks
from benchmarks.leaks import exam
from memagent.components import live_objects
from memagent.leaks import Diagnosis, Finder, autograd_graphs, census

OBJECTS, OBJECTS_QUICK = (0, 300_000, 1_000_000, 2_000_000), (0, 300_000)
REPEATS, REPEATS_QUICK = 15, 5


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.leaks", description=benchmarks.leaks.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument(
        "verb", nargs="?", choices=("cost", "scripts", "steps"), default="cost",
        help="what to measure: the cost of a diagnosis (default), what is named in stored scripts, "
        "or that with the finder's time at each step boundary",
    )  # fmt: skip
    parser.add_argument("--quick", action="store_true", help="few objects: shows that it works")
    parser.add_argument(
        "--exam", choices=exam.EXAMS, help="exams: only those of one exam (default: of all)"
    )
    parser.add_argument("--half", choices=exam.HALVES, help="exams: only those of one half")
    parser.add_argument("--jobs", type=int, default=1, help="exams: that many at a time")
    parser.add_argument("--busy", type=int, default=0, help="exams: processes that compete")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures here")
    arguments = parser.parse_args()
    if arguments.verb != "cost":
        exams = (arguments.exam,) if arguments.exam else exam.EXAMS
        exam.main(
            exams, arguments.half, arguments.json, arguments.jobs, arguments.busy,
            is_timed=arguments.verb == "steps",
        )  # fmt: skip
        return
    repeats = REPEATS_QUICK if arguments.quick else REPEATS
    rows = [measure(count, repeats) for count in (OBJECTS_QUICK if arguments.quick else OBJECTS)]
    print(table(rows))
    if arguments.json:
        arguments.json.write_text(
            json.dumps({"quick": arguments.quick, "rows": rows}, indent=2) + "\n"
        )


def measure(count: int, repeats: int) -> dict[str, float | int]:
    """Measure with about `count` live objects, including torch's, in milliseconds: medians and
    minima.
    """
    gc.collect()
    ballast = [{"row": [number]} for number in range(max(0, count - len(gc.get_objects())) // 2)]
    try:
        objects = len(gc.get_objects())
        bare = _timed(_pass, repeats)
        census_s = _timed(lambda: census.take(0, live_objects.live_tensors()), repeats)
        graph = _timed(lambda: autograd_graphs.count_nodes(live_objects.live_tensors()), repeats)
        diagnoses = [_diagnosis() for _ in range(max(3, repeats // 3))]
    finally:
        ballast.clear()
    pauses = [diagnosis.pause_s for diagnosis, _ in diagnoses]
    most_per_step = [max(per_step) for _, per_step in diagnoses]
    return {
        "objects": objects,
        "pass_ms": _ms(bare),
        "census_ms": _ms(census_s),
        "census_least_ms": round(min(census_s) * 1e3, 1),
        "census_ms_per_100k": round(statistics.median(census_s) * 1e8 / objects, 1),
        "census_passes": round(statistics.median(census_s) / statistics.median(bare), 2),
        "census_and_graph_ms": _ms(graph),
        "diagnosis_ms": _ms(pauses),
        "diagnosis_most_ms": round(max(pauses) * 1e3, 1),
        "diagnoses": len(diagnoses),
        "cut_short": sum(diagnosis.is_cut_short for diagnosis, _ in diagnoses),
        "step_most_ms": _ms(most_per_step),
        "steps": max(len(per_step) for _, per_step in diagnoses),
        "diagnosis_passes": round(statistics.median(pauses) / statistics.median(bare), 1),
    }


def _pass() -> None:
    set(map(type, gc.get_objects()))


def _diagnosis() -> tuple[Diagnosis, list[float]]:
    """Diagnose a list that keeps outputs, from start to end. Return it with the cost of each step
    to the training thread, in seconds of processor time.
    """
    model = torch.nn.Linear(64, 64)
    optimizer = torch.optim.SGD(model.parameters())
    finder = Finder()
    finder.request()
    outputs = []
    per_step: list[float] = []
    for step in range(1, 400):
        output = model(torch.randn(8, 64))
        outputs.append(output.detach())
        output.sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        began_s = time.thread_time()
        diagnosis = finder.after_step(step)
        per_step.append(time.thread_time() - began_s)
        if diagnosis is not None:
            kinds = [suspect.kind for suspect in diagnosis.suspects]
            assert kinds == ["list"], diagnosis
            return diagnosis, per_step
    raise AssertionError("no diagnosis")


def _timed(call: Callable[[], object], repeats: int) -> list[float]:
    seconds = []
    for _ in range(repeats):
        began = time.thread_time()
        call()
        seconds.append(time.thread_time() - began)
    return seconds


def _ms(seconds: list[float]) -> float:
    return round(statistics.median(seconds) * 1e3, 1)


def table(rows: list[dict[str, float | int]]) -> str:
    """For people."""
    heads = (
        "objects",
        "census",
        "(least)",
        "per 100k",
        "a pass",
        "diagnosis",
        "a pass",
        "most a step",
        "steps",
    )
    lines = ["".join(f"{head:>12}" for head in heads)]
    for row in rows:
        cells = (
            f"{row['objects']:,}",
            *(
                f"{row[name]:.1f} ms"
                for name in ("census_ms", "census_least_ms", "census_ms_per_100k")
            ),
            f"{row['census_passes']:.2f}x",
            f"{row['diagnosis_ms']:.0f} ms",
            f"{row['diagnosis_passes']:.1f}x",
            f"{row['step_most_ms']:.0f} ms",
            str(row["steps"]),
        )
        lines.append("".join(f"{cell:>12}" for cell in cells))
    return "\n".join(lines)


if __name__ == "__main__":
    main()
