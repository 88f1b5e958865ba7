"""Leaks named on a busy host: `python -m benchmarks.leaks.under_load [--busy 4] SCRIPT...`

Busy processes compete for the cores, and each script runs at nice 15 under a finder with its usual
limits. A script marks its line with `# LEAK kind holder`; one without a mark must have no suspect.
Use it with scripts that run for at least a hundred steps, or with those of tests/system/leaks.
"""

from __future__ import annotations

import argparse
import json
import os
import runpy
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch._dynamo
from torch.optim.optimizer import register_optimizer_step_post_hook

import memagent.leaks
from benchmarks.machine import busy_processes

CASES = Path(__file__).parents[2] / "tests/system/leaks/cases"
NICE = 15
BEGIN_AT_STEP = 5


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.leaks.under_load", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--busy", type=int, default=4, help="processes that compete")
    parser.add_argument("scripts", nargs="*", type=Path, help="scripts to run (default: the cases)")
    arguments = parser.parse_args()
    scripts = [path.resolve() for path in arguments.scripts] or sorted(CASES.glob("*.py"))
    results = []
    with busy_processes(arguments.busy):
        for script in scripts:
            results.append(_result(script))
            print(json.dumps(results[-1]), flush=True)
    named = sum(result["is_right"] for result in results)
    print(f"{named} of {len(results)} are right, at load {os.getloadavg()[0]:.0f}")


def _result(script: Path) -> dict[str, Any]:
    """Run a script in a fork at low priority."""
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read_end)
        os.nice(NICE)
        with os.fdopen(write_end, "w") as pipe:
            json.dump(_run(script), pipe)
        os._exit(0)
    os.close(write_end)
    with os.fdopen(read_end) as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    return {"script": script.stem, "is_right": False, **json.loads(text or "{}")}


def _run(script: Path) -> dict[str, Any]:
    torch.manual_seed(0)
    finder = memagent.leaks.Finder()
    steps = 0
    done_at_step = None
    is_traced = False

    def after_step(*_: object) -> None:
        nonlocal steps, done_at_step, is_traced
        steps += 1
        if steps == BEGIN_AT_STEP:
            finder.request()
        diagnosis = finder.after_step(steps)
        if diagnosis is not None:
            done_at_step = steps
            if not diagnosis and not is_traced:  # as the monitor does on a CPU
                is_traced = True
                finder.request(host=True, beyond_budget=True)

    register_optimizer_step_post_hook(after_step)
    began = time.monotonic()
    sys.argv = [str(script)]
    sys.stdout = sys.stderr
    runpy.run_path(str(script), run_name="__main__")
    lines = [
        number for number, text in enumerate(script.read_text().splitlines(), 1) if "# LEAK" in text
    ]
    suspects = finder.diagnosis.suspects if finder.diagnosis else ()
    return {
        "is_right": finder.diagnosis is not None
        and [suspect.line for suspect in suspects[:1]] == lines[:1],
        "done_at_step": done_at_step,
        "processor_s": round(finder.budget.spent_s, 3),
        "wall_s": round(time.monotonic() - began, 1),
    }


if __name__ == "__main__":
    main()
