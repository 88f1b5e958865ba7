"""Generated traces: need = floor + activations against a limit, over runs of 200 to 3,000 steps. A
run dies if its need passes the limit.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator

from benchmarks.forecast.traces import Trace

GIB = 2**30
Shape = Callable[[float], float]
"""Growth by time; 1 at time 1 is the limit."""


def _jumps(source: random.Random, count: int, decay: float) -> Shape:
    at = sorted(source.betavariate(1, decay) for _ in range(count))
    return lambda time: sum(jump <= time for jump in at) / count


def _saw(source: random.Random) -> Shape:
    period, height = source.uniform(0.05, 0.4), source.uniform(0.2, 0.9)
    return lambda time: height * (time % period) / period


def _plateau(source: random.Random) -> Shape:
    height, tau = source.uniform(0.3, 0.9), source.uniform(0.02, 0.4)
    return lambda time: height * (1 - math.exp(-time / tau))


def _late(source: random.Random) -> Shape:
    onset = source.uniform(0.3, 0.7)
    return lambda time: max(0.0, time - onset) / (1 - onset)


def _per_eval(source: random.Random) -> Shape:
    count = source.randint(6, 20)
    return lambda time: math.floor(time * count) / count * 1.05


def _jump_and_stay(source: random.Random) -> Shape:
    at, height = source.uniform(0.1, 0.9), source.uniform(0.3, 0.95)
    return lambda time: height if time > at else 0.0


FATAL: dict[str, Callable[[random.Random], Shape]] = {
    "leak, linear": lambda _source: lambda time: time,
    "leak, accelerating": lambda _source: lambda time: time**1.5,
    "leak, late onset": _late,
    "leak, per eval": _per_eval,
    "compile, jumps": lambda source: _scaled(_jumps(source, source.randint(8, 40), 1.2), 1.05),
}
HARMLESS: dict[str, Callable[[random.Random], Shape]] = {
    "flat": lambda _source: lambda _time: 0.0,
    "flat at 98 %": lambda _source: lambda _time: 0.9,
    "plateau": _plateau,
    "saw tooth": _saw,
    "jump and stay": _jump_and_stay,
    "compile, dying out": lambda source: _scaled(
        _jumps(source, source.randint(8, 40), 5), source.uniform(0.3, 0.85)
    ),
    "too slow": lambda _source: lambda time: 0.4 * time,
}


def _scaled(shape: Shape, by: float) -> Shape:
    return lambda time: by * shape(time)


def traces(each: int, seed: int) -> Iterator[Trace]:
    """Return `each` runs of each family."""
    for name in FATAL | HARMLESS:
        source = random.Random(f"{seed} {name}")
        for _ in range(each):
            yield _trace(name, source)


def _trace(name: str, source: random.Random) -> Trace:
    limit = source.choice([16, 24, 40, 80]) * GIB
    planned = round(math.exp(source.uniform(math.log(200), math.log(3000))))
    fatal = name in FATAL
    ends = planned * source.uniform(0.25, 0.9) if fatal else planned
    shape = (FATAL if fatal else HARMLESS)[name](source)
    static, batch = source.uniform(0.2, 0.5) * limit, source.uniform(0.1, 0.3) * limit
    room, noise = limit - static - batch, source.choice([0.0, 1e-4, 2e-3]) * limit
    floors, peaks = [], []
    for step in range(planned):
        floor = static + room * shape(step / ends) + source.gauss(0, noise)
        peak = floor + batch * source.uniform(0.99, 1.0)
        if peak >= limit and fatal:
            break
        floors.append(int(floor))
        peaks.append(int(min(peak, limit - 1)))
    death = len(floors) if len(floors) < planned else None
    step_s = math.exp(source.uniform(math.log(0.15), math.log(6)))
    columns = {
        "step": list(range(len(floors))), "time_s": [step * step_s for step in range(len(floors))],
        "allocated_bytes": floors, "peak_allocated_bytes": peaks,
    }  # fmt: skip
    options = {"total_steps": planned if source.random() < 0.75 else None}
    return Trace(name, limit, columns, death, "leak" if death else None, death is not None, options)
