"""Record verdicts of the product's leak finder on the programs of `gpu_programs.py`.

`python -m benchmarks.forecast.finder_record [--out FILE] [--jobs N] [--each N] [--only NAME]` runs
them on the rehearsal device, with memagent attached, under the seeds and limits of
`gpu_rehearsed.jsonl.gz`. It needs a CUDA build of torch, and no GPU.

1. Each program becomes a script of its own: the finder reads sources, and the words of one program
   are no evidence for another.
2. A step takes at least `attached_run.STEP_S`.
3. A line of the file is a run: the verdicts in its hints, the states of diagnoses, and the
   first notice and page on the terminal, by row.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import json
import multiprocessing
import os
import random
import runpy
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.forecast import attached_run, gpu_record, gpu_recorded
from benchmarks.forecast.finder_results import FILE
from benchmarks.forecast.gpu_programs import GPU_PROGRAMS
from benchmarks.forecast.gpu_run import Setting
from benchmarks.forecast.program_set import Kind
from memagent.environment import REHEARSAL_PREFIX
from memagent.rehearsal import build, launch

CARD = "h200"
TIMEOUT_S = 600
NUMBERS = range(8)
SCRIPT = "train.py"
_CONTEXT = multiprocessing.get_context("fork")


@dataclass(frozen=True)
class Order:
    """A run to repeat: its program, setting and limit, and what a process uses beside torch."""

    kind: Kind
    setting: Setting
    limit: int
    overhead: int


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.forecast.finder_record", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--out", type=Path, default=FILE, metavar="FILE", help="appends to it")
    parser.add_argument("--jobs", type=int, default=4, help="runs at a time (default: 4)")
    parser.add_argument("--each", type=int, default=1, help="runs of each program (default: 1)")
    parser.add_argument("--first", type=int, default=0, help="the first of them (default: 0)")
    parser.add_argument("--only", action="append", metavar="NAME", help="only this program")
    arguments = parser.parse_args()
    only = {name.replace("_", " ") for name in arguments.only or ()}
    made = [
        order
        for order in orders(range(arguments.first, arguments.first + arguments.each))
        if not only or order.kind.name in only
    ]
    if not any(name.startswith(REHEARSAL_PREFIX) for name in os.environ):
        _load_the_device()
    gpu_record.import_what_optimizers_do()
    with ThreadPoolExecutor(arguments.jobs) as pool:
        for ended in as_completed(pool.submit(played, order) for order in made):
            result = ended.result()
            if "failure" in result:
                print(result["program"], result["failure"], file=sys.stderr, flush=True)
                continue
            with arguments.out.open("a") as file:
                file.write(json.dumps(result, separators=(",", ":")) + "\n")


def _load_the_device() -> None:
    """Run this command again with the rehearsal device, which must be first in a process."""
    device = build.prepare(build.torch_folder())
    machine = launch.Machine(launch.cuda_card(CARD))
    command = [sys.executable, "-m", "benchmarks.forecast.finder_record", *sys.argv[1:]]
    os.execve(sys.executable, command, launch.environment_of(os.environ, device, machine))


def orders(numbers: range) -> Iterator[Order]:
    """Return the rehearsed runs of each program with these numbers, in the order of the file."""
    counts: dict[str, int] = {}
    kinds = {kind.name: kind for kind in GPU_PROGRAMS.kinds}
    for run in gpu_recorded.lines(gpu_recorded.REHEARSED):
        name = run["program"]
        counts[name] = counts.get(name, -1) + 1
        if counts[name] in numbers:
            chosen = replace(_setting_of(run), scale=run["scale"])
            yield Order(kinds[name], chosen, run["limit"], run["overhead"])


def _setting_of(run: dict[str, Any]) -> Setting:
    """Return the setting that the recorder drew for a run."""
    for number in NUMBERS:
        for attempt in range(gpu_record.ATTEMPTS):
            drawn = gpu_record.setting(random.Random(f"{run['program']} {number} {attempt}"))
            if (drawn.steps, round(drawn.growth, 3)) == (run["steps"], run["growth"]):
                return drawn
    raise ValueError(f"no number of {run['program']} has {run['steps']} steps")


def played(order: Order) -> dict[str, Any]:
    """Run it in a process, and return what was found."""
    about = {
        "program": order.kind.name, "truth": order.kind.grows, "cause": order.kind.cause, "limit": order.limit,
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / SCRIPT).write_text(script_of(order.kind))
        process = _CONTEXT.Process(target=_run_script, args=(order, folder))
        process.start()
        process.join(TIMEOUT_S)
        process.kill()
        result = folder / attached_run.RESULT
        if not result.exists():
            return about | {"failure": (folder / attached_run.STDERR).read_text()[-1500:]}
        return about | json.loads(result.read_text())


def _run_script(order: Order, folder: Path) -> None:
    """Run the script: the body of a process, which has imported torch before it began."""
    with (folder / attached_run.STDERR).open("wb") as errors:
        os.dup2(errors.fileno(), 2)
    os.environ["MEMAGENT_DIR"] = str(folder)
    os.chdir(folder)
    gpu_record.configure(order.setting)
    attached_run.order = attached_run.Order(order.setting, order.limit, order.overhead, folder)
    runpy.run_path(str(folder / SCRIPT), run_name="__main__")


def script_of(kind: Kind) -> str:
    """Return the program as a script: what its module has besides programs, itself, and a call."""
    module = inspect.getmodule(kind.program)
    assert module is not None
    source = inspect.getsource(module)
    tree = ast.parse(source)
    name = kind.program.__name__
    kept = [
        node for node in tree.body if name == getattr(node, "name", name) or not _is_program(node)
    ]
    for node in kept:
        if isinstance(node, ast.FunctionDef) and node.name == name:
            node.decorator_list = []
    call = f"from benchmarks.forecast import attached_run\n\nattached_run.main({name})\n"
    return "\n\n".join([*map(ast.unparse, kept), call])


def _is_program(node: ast.stmt) -> bool:
    return isinstance(node, ast.FunctionDef) and bool(node.decorator_list)


if __name__ == "__main__":
    main()
