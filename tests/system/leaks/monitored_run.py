"""Runs scripts under the finder, each in a process of its own: `python watched.py SCRIPT...` prints a JSON line for each.

The processes are forked from this one, which has torch imported already: it spares each of them a second or two. A script knows nothing of
memagent; as in `memagent.attach`, a hook on the optimizer's step calls the finder.
"""

from __future__ import annotations

import json
import math
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
    finder = memagent.leaks.Finder(
        longest_pause_s=math.inf
    )  # how busy this host is should not decide
    watch(finder)
    try:
        sys.argv = [script]
        runpy.run_path(script, run_name="__main__")
    except BaseException:
        traceback.print_exc()
        return 1
    if finder.diagnosis is None:
        print(f"{script} made too few steps for a diagnosis", file=sys.stderr)
        return 1
    found = finder.diagnosis
    answer = {
        "script": script,
        "pause_s": found.pause_s,
        "suspects": [one.to_dict() for one in found.suspects],
    }
    print(json.dumps(answer), flush=True)
    return 0


def watch(finder: memagent.leaks.Finder) -> None:
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
