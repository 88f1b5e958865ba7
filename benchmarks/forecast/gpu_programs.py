"""Training programs on a GPU: what they keep, and whether it ends. Real models, autograd, optimizers.

`python -m benchmarks.forecast.gpu_programs record --out FILE [--jobs N] [--each N] [--first N]
[--seconds S] [--only NAME] [--steps N] [--scale N]` records them. It needs torch and no other package.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks.forecast import gpu_dying, gpu_living, gpu_record
from benchmarks.forecast.gpu_trainings import GPU_PROGRAMS

__all__ = ["GPU_PROGRAMS", "gpu_dying", "gpu_living"]


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.forecast.gpu_programs", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("command", choices=["record", "list"])
    parser.add_argument("--out", type=Path, default=Path("gpu_recorded.jsonl.gz"), metavar="FILE")
    parser.add_argument("--jobs", type=int, default=4, help="runs at a time (default: 4)")
    parser.add_argument("--each", type=int, default=4, help="runs of each program (default: 4)")
    parser.add_argument("--first", type=int, default=0, help="number of the first (default: 0)")
    parser.add_argument("--seconds", type=float, default=480, help="time for all (default: 480)")
    parser.add_argument("--only", action="append", metavar="NAME", help="only this program")
    parser.add_argument("--steps", type=int, help="planned steps of each run, to try it")
    parser.add_argument("--scale", type=int, default=1, help="factor on all batches (default: 1)")
    arguments = parser.parse_args()
    only = {name.replace("_", " ") for name in arguments.only or ()}
    kinds = [kind for kind in GPU_PROGRAMS.kinds if not only or kind.name in only]
    if arguments.command == "list":
        print("\n".join(f"{kind.name}: {kind.cause or 'lives'}" for kind in kinds))
        return
    gpu_record.record(
        kinds,
        arguments.out,
        jobs=arguments.jobs,
        numbers=range(arguments.first, arguments.first + arguments.each),
        seconds=arguments.seconds,
        steps=arguments.steps,
        scale=arguments.scale,
    )


if __name__ == "__main__":
    main()
