"""All measurements by name, and the process that runs one: `python -m benchmarks.agent.measures
NAME --out FILE`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).parents[2]
_TIMEOUT_S = 3_600.0

Result = list[dict[str, Any]]


def _empty_loop(quick: bool) -> Result:
    from benchmarks.agent import steps, workload

    costs = steps.measure_steps(
        workload.empty(), rounds=3 if quick else 40, steps=200 if quick else 3000
    )
    return _rows(steps.figures(costs))


def _small_step(quick: bool) -> Result:
    from benchmarks.agent import steps, workload

    costs = steps.measure_steps(
        workload.small(), rounds=2 if quick else 20, steps=30 if quick else 1000
    )
    rows = steps.figures(costs, beyond_goal_us=10.0, p99_goal_us=50.0)
    return _rows([steps.hand_off_goals(row) if "hand-off" in row.name else row for row in rows])


def _wide_step(quick: bool) -> Result:
    from benchmarks.agent import steps, workload

    costs = steps.measure_steps(
        workload.wide(), rounds=2 if quick else 12, steps=5 if quick else 80
    )
    return _rows([*steps.figures(costs), *steps.slowdown(costs)])


def _ten_ms_step(quick: bool) -> Result:
    from benchmarks.agent import steps, workload

    costs = steps.measure_steps(
        workload.ten_milliseconds(), rounds=2 if quick else 40, steps=5 if quick else 110
    )
    rows = steps.figures(costs, beyond_p99_goal_us=30.0)
    return _rows([*rows, *steps.slowdown(costs, goal_percent=0.5)])


def _import(quick: bool) -> Result:
    from benchmarks.agent import startup

    return _rows(startup.import_time(3 if quick else 40))


def _attach(quick: bool) -> Result:
    from benchmarks.agent import startup

    return _rows(startup.attach_time(2 if quick else 9))


def _memory(quick: bool) -> Result:
    from benchmarks.agent import startup

    return _rows(startup.memory(100 if quick else 5000))


def _processor(quick: bool) -> Result:
    from benchmarks.agent import processor_time, workload

    rounds, steps = (2, 20) if quick else (20, 1000)
    return _rows(processor_time.measure(workload.ten_milliseconds(), rounds=rounds, steps=steps))


def _first_attach(parameters: int) -> Result:
    from benchmarks.agent.first_attach import first_attach

    return _rows(first_attach(parameters))


def _gpu(quick: bool) -> Result:
    from benchmarks.agent import gpu

    return _rows(gpu.measure(rounds=3 if quick else 30, steps=10 if quick else 60))


MEASURES: dict[str, Callable[[bool], Result]] = {
    "empty loop": _empty_loop,
    "1 ms step": _small_step,
    "10 ms step": _ten_ms_step,
    "wide step": _wide_step,
    "import": _import,
    "attach": _attach,
    "memory": _memory,
    "processor": _processor,
    "first attach": lambda _: _first_attach(100),
    "first attach of a large model": lambda _: _first_attach(10_000),
    "gpu": _gpu,
}


def in_fresh_process(name: str, *, quick: bool) -> Result | str:
    """Return the result of a measurement, or the reason why there is none."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        out = Path(folder) / "result.json"
        command = [
            sys.executable,
            "-m",
            __spec__.name,
            name,
            "--out",
            str(out),
            *(["--quick"] if quick else []),
        ]
        path = os.pathsep.join(filter(None, (str(_ROOT), os.environ.get("PYTHONPATH"))))
        environment = {
            **{key: value for key, value in os.environ.items() if not key.startswith("MEMAGENT_")},
            "PYTHONPATH": path,
            "MEMAGENT_DIR": str(Path(folder) / "runs"),
        }
        # pip compiles what it installs: compiling anew in each process doubles the time of attach
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        try:
            done = subprocess.run(
                command,
                cwd=folder,
                env=environment,
                timeout=_TIMEOUT_S,
                capture_output=True,
                text=True,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return f"failed: no end after {_TIMEOUT_S:.0f} s"
        if done.returncode:
            return f"failed: {(done.stderr.strip().splitlines() or ['no message'])[-1]}"
        result: Result = json.loads(out.read_text())
        return result


def _rows(figures: list[Any]) -> Result:
    return [figure.to_dict() for figure in figures]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--quick", action="store_true")
    arguments = parser.parse_args()
    if arguments.name in MEASURES:
        result = MEASURES[arguments.name](arguments.quick)
    else:
        from benchmarks.agent.session import session

        result = [session(arguments.name, steps=30 if arguments.quick else 2000)]
    arguments.out.write_text(json.dumps(result))


if __name__ == "__main__":
    main()
