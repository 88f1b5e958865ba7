"""Command line: run every measurement in its own process, then print one table. See
`benchmarks.agent`.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import benchmarks.agent
from benchmarks.agent import session
from benchmarks.agent.measures import in_fresh_process
from benchmarks.agent.peers import PEERS
from benchmarks.agent.startup import median_of
from benchmarks.figures import Figure, table
from benchmarks.machine import describe

_SECTIONS = {
    "training thread, a loop that computes nothing (warm caches)": "empty loop",
    "training thread, a 1 ms step": "1 ms step",
    "training thread, a 10 ms step": "10 ms step",
    "training thread, a step that streams through the caches": "wide step",
}
_PEERS_SECTION = "a 1 ms step with each tracker, less the step before it began (20 values a step)"
_ONCE_SECTION = "once"
_GPU_SECTION = "GPU, GPT-2 small, bf16 autocast, phases on"
_PROCESSOR_SECTION = "processor time, 20,000 steps of 10 ms; percent of the training thread's"
_ATTACH_SECTION = "processor time, the first attach of a process"
_FIELDS = {field.name for field in fields(Figure)}


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.agent", description=benchmarks.agent.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument(
        "--quick",
        action="store_true",
        help="every row, from few blocks: shows that it works, not how fast it is",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures here")
    parser.add_argument(
        "--gpu", action="store_true", help="only the measures that need a CUDA device"
    )
    parser.add_argument(
        "--processor", action="store_true", help="only processor time, as ratios of one run"
    )
    arguments = parser.parse_args()
    select = _gpu if arguments.gpu else _processor if arguments.processor else _all
    sections = select(arguments.quick)
    host = machine()
    print(
        f"{host['processor']}, {host['cores']} cores, load {host['load']:.1f}, torch {host['torch']}\n{table(sections)}"
    )
    if arguments.json:
        rows = {
            title: [figure.to_dict() for figure in figures] for title, figures in sections.items()
        }
        text = json.dumps({"machine": host, "quick": arguments.quick, "sections": rows}, indent=2)
        arguments.json.write_text(text + "\n")


def _all(quick: bool) -> dict[str, list[Figure]]:
    sections = {title: _figures(measure, quick) for title, measure in _SECTIONS.items()}
    sections[_PEERS_SECTION] = _peers(quick)
    sections[_ONCE_SECTION] = _once(quick)
    return sections


def _gpu(quick: bool) -> dict[str, list[Figure]]:
    return {_GPU_SECTION: _figures("gpu", quick)}


def _processor(quick: bool) -> dict[str, list[Figure]]:
    attach = [
        figure
        for measure in ("first attach", "first attach of a large model")
        for figure in _repeated(measure, quick)
    ]
    return {_PROCESSOR_SECTION: _figures("processor", quick), _ATTACH_SECTION: attach}


def _figures(measure: str, quick: bool) -> list[Figure]:
    _say(measure)
    result = in_fresh_process(measure, quick=quick)
    if isinstance(result, str):
        return [Figure(measure, "", note=result)]
    return [_figure(row) for row in result]


def _peers(quick: bool) -> list[Figure]:
    """Run each tracker in several processes, all in random order."""
    order = [name for name in PEERS for _ in range(1 if quick else 5)]
    random.Random(0).shuffle(order)
    results: dict[str, list[dict[str, Any]]] = {name: [] for name in PEERS}
    failures: dict[str, str] = {}
    for name in order:
        _say(name)
        result = in_fresh_process(name, quick=quick)
        if isinstance(result, str):
            failures[name] = result
        else:
            results[name] += result
    figures = []
    for name, sessions in results.items():
        figures += (
            session.figures(name, sessions)
            if sessions
            else [Figure(name, "us", note=failures[name])]
        )
    return figures


def _once(quick: bool) -> list[Figure]:
    figures = _figures("import", quick)
    return figures + _repeated("attach", quick) + _repeated("memory", quick)


def _repeated(measure: str, quick: bool) -> list[Figure]:
    """Return the medians of several processes."""
    rounds = [_figures(measure, quick) for _ in range(1 if quick else 5)]
    return [median_of(list(same)) for same in zip(*rounds, strict=False)]


def _figure(row: dict[str, Any]) -> Figure:
    return Figure(**{name: value for name, value in row.items() if name in _FIELDS})


def _say(what: str) -> None:
    if sys.stderr.isatty():
        print(f"\r\x1b[K{what} ...", end="\r", file=sys.stderr, flush=True)


def machine() -> dict[str, Any]:
    """Describe the machine."""
    import torch

    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return {**describe(), "torch": torch.__version__, "gpu": gpu}


if __name__ == "__main__":
    main()
