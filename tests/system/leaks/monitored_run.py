"""Run scripts under the finder: `python monitored_run.py SCRIPT...` prints a JSON line for each.

Each script runs in a fork of this process, which has imported torch; that saves a second or two. A
script knows nothing of memagent: as in `memagent.attach`, a hook on the optimizer's step calls the
finder.
"""

from __future__ import annotations

import itertools
import json
import os
import runpy
import sys
import traceback

import torch
import torch._dynamo
import torch.utils.data
from torch.optim.optimizer import register_optimizer_step_post_hook

import memagent.leaks

BEGIN_AT_STEP = 5


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
    torch.manual_seed(0)
    # A clock of calls cuts the search into the same slices however busy the host is: each call is
    # 4 ms, so a slice has five of them.
    calls = itertools.count()
    finder = memagent.leaks.Finder(thread_clock=lambda: 0.004 * next(calls))
    install_hook(finder)
    try:
        sys.argv = [script]
        runpy.run_path(script, run_name="__main__")
    except BaseException:
        traceback.print_exc()
        return 1
    if finder.diagnosis is None:
        print(f"{script} made too few steps for a diagnosis", file=sys.stderr)
        return 1
    diagnosis = finder.diagnosis
    result = {
        "script": script,
        "pause_s": diagnosis.pause_s,
        "suspects": [suspect.to_dict() for suspect in diagnosis.suspects],
    }
    print(json.dumps(result), flush=True)
    return 0


def install_hook(finder: memagent.leaks.Finder) -> None:
    steps = 0

    def after_step(*_: object) -> None:
        nonlocal steps
        steps += 1
        if steps == BEGIN_AT_STEP:
            finder.request()
        finder.after_step(steps)

    register_optimizer_step_post_hook(after_step)


if __name__ == "__main__":
    main()
