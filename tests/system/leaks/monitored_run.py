"""Run scripts under the finder: `python monitored_run.py SCRIPT...` prints a JSON line for each.

Each script runs in a fork of this process, which has imported torch; that saves a second or two. A
script knows nothing of memagent: as in `memagent.attach`, a hook on the optimizer's step calls the
finder. As the monitor does on a CPU, it traces Python's own allocations if no tensor was suspected.
A script with rare growth sets the length of the window: `# WINDOW 60`, and one whose growth ends
sets the step at which the search begins: `# BEGIN 24`. As most have 70 steps, a suspect with a limit
in the source is confirmed by 30; one with more sets that: `# CONFIRM 80`.
"""

from __future__ import annotations

import gc
import itertools
import json
import os
import re
import runpy
import sys
import traceback
from pathlib import Path

import torch
import torch._dynamo
import torch.utils.data
from torch.optim.optimizer import register_optimizer_step_post_hook

import memagent.leaks
from memagent.leaks import WINDOW_STEPS
from memagent.leaks.free_memory import FreeMemory

BEGIN_AT_STEP = 5
CONFIRMING_STEPS = 30
FREE_BYTES = 2 * 2**30


def main() -> None:
    for script in sys.argv[1:]:
        child = os.fork()
        if child == 0:
            os._exit(run(script))
        _, status = os.waitpid(child, 0)
        if status:
            print(
                json.dumps({"script": script, "error": f"ended with status {status}"}), flush=True
            )


def run(script: str) -> int:
    # frozen before the fork, and invisible to the finder: not so in a process of its own
    gc.unfreeze()
    torch.manual_seed(0)
    # A clock of calls cuts the search into the same slices however busy the host is: each call is
    # 4 ms, so a slice has five of them.
    calls = itertools.count()
    text = Path(script).read_text()
    numbers = {name: int(value) for name, value in re.findall(r"^# ([A-Z]+) (\d+)$", text, re.M)}
    finder = memagent.leaks.Finder(
        thread_clock=lambda: 0.004 * next(calls),
        free_memory=lambda: FreeMemory(host_bytes=FREE_BYTES),
        window=numbers.get("WINDOW", WINDOW_STEPS),
        confirming_window=numbers.get("CONFIRM", CONFIRMING_STEPS),
    )
    install_hook(finder, numbers.get("BEGIN", BEGIN_AT_STEP))
    try:
        sys.argv = [script]
        sys.path.insert(0, str(Path(script).parent))
        runpy.run_path(script, run_name="__main__")
    except BaseException:
        traceback.print_exc()
        return 1
    if finder.is_busy:
        finder.conclude()
    if finder.diagnosis is None:
        print(f"{script} made too few steps for a diagnosis", file=sys.stderr)
        return 1
    diagnosis = finder.diagnosis
    result = {
        "script": script,
        "pause_s": diagnosis.pause_s,
        "suspects": [suspect.to_dict() for suspect in diagnosis.suspects],
    }
    # the script may have replaced sys.stdout
    print(json.dumps(result), file=sys.__stdout__, flush=True)
    return 0


def install_hook(finder: memagent.leaks.Finder, begin_at_step: int) -> None:
    steps = 0
    is_traced = False

    def after_step(*arguments: object) -> None:
        nonlocal steps, is_traced
        del arguments  # no other name of the optimizer
        steps += 1
        if steps == begin_at_step:
            finder.request()
        diagnosis = finder.after_step(steps)
        if diagnosis is not None and not diagnosis and not is_traced:
            is_traced = True
            finder.request(host=True, beyond_budget=True)

    register_optimizer_step_post_hook(after_step)


if __name__ == "__main__":
    main()
