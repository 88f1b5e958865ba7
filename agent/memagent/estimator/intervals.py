"""The 90 % interval of an estimate at each level: tensors, reserved, device.

1. Parameters and optimizer state stay from step to step whatever the input, and are counted
   exactly. Errors come with what comes and goes within a step, so the widths are ratios of these
   *passing* bytes.
2. The ratios are split-conformal quantiles: the error that 19 of 20 trainings don't exceed below
   the estimate, and above it. Each group of trainings (method, family, checkpointing) and each
   level has its own. `python -m benchmarks.estimator intervals` fits them to one half of the
   programs and prints how many peaks of the other half they hold. `interval_ratios.json` names the
   corpus.
3. The device's level also has the context, if it wasn't measured. The two errors are independent,
   so their widths add up as squares do.
"""

from __future__ import annotations

from functools import cache
from math import hypot
from pathlib import Path

import msgspec

from memagent.units import MIB

Interval = tuple[int, int]
ErrorRatios = tuple[float, float]
"""Ratios of the passing bytes, (below, above) the estimate."""

MIN_WIDTH_BYTES = 2 * MIB
"""Least width on either side, on a GPU: torch's small segments have 2 MiB, and its blocks up to
1 MiB unused, which depends on addresses."""
MIN_WIDTH_RATIO = 0.02
"""The least width of steps with less than 100 MiB that come and go, whose blocks are small."""

FRAGMENTATION_RATIO = 0.33
"""Ratio of the passing bytes that the caching allocator reserves beyond the tensors' peak.

Fitted to 32 measured fine-tunings (0.1 to 0.8, this is the median), all with checkpointing; without
any one of their three models it is 0.29 to 0.35. Parameters and states leave no holes."""
STORED_FRAGMENTATION_RATIO = 0.15
"""The same without checkpointing: each step's tensors find the blocks of the step before.

Replays of 16 traced steps of GPT-2 reserve 0.02 to 0.41 (median 0.06); long runs add 0.05."""
REHEARSED_CACHE_RATIO = 0.021
"""Cache of a run beyond its rehearsal, as a ratio of the passing bytes: kernels' own memory, and
lengths, evaluations and saves that come later.

The largest of 34 trainings of 19 families without convolutions on an H200: every second of the
alphabet. Of 49 of the others, five of LSTM have more (0.023 to 0.99). With the context's range, the
device's peak is within the interval in all 49, and in five of six fine-tunings on an A100."""
REHEARSED_CONVOLUTIONS_RATIO = 0.38
"""The same with convolutions: cuDNN chooses its workspaces at run time, by what is free, and the
allocator keeps them. Fitted to 21 trainings of 12 nets on an H200, without cudnn.benchmark: 18 of
20 of 12 other nets lie within."""


class GroupRatios(msgspec.Struct, frozen=True):
    """Error ratios of a group of trainings by level, and what they were fitted to.

    `pool` is the group that they were fitted to: a larger one if this has too few trainings.
    """

    allocated: ErrorRatios
    reserved: ErrorRatios = (0.0, 0.0)
    device: ErrorRatios = (0.0, 0.0)
    pool: str = ""
    trainings: int = 0
    programs: int = 0


ON_HOST = GroupRatios(allocated=(0.005, 0.005))
"""58 of 58 peaks of the benchmark zoo were exact; a host's kernels have scratch memory too."""


class RatioTable(msgspec.Struct, frozen=True):
    """The content of `interval_ratios.json`; `corpus` is the SHA-256 of what it was fitted to."""

    corpus: str
    groups: dict[str, GroupRatios]

    def ratios_for(self, group: str) -> GroupRatios:
        """Return the ratios of a group, or of its method if the group has none."""
        return self.groups.get(group) or self.groups[group.partition(",")[0]]


@cache
def ratio_table() -> RatioTable:
    """Return the fitted ratios."""
    content = Path(__file__).with_name("interval_ratios.json").read_bytes()
    return msgspec.json.decode(content, type=RatioTable)


def intervals_of(
    ratios: GroupRatios,
    *,
    passing_bytes: float,
    allocated: int,
    reserved: int | None = None,
    device: int | None = None,
    context: Interval | None = None,
) -> dict[str, Interval]:
    """Return the interval of each known level; `context` is the result of `context_widths`.

    No level starts below the constant bytes, nor below the tensors' level.
    """
    # a host has no blocks
    least = 0 if reserved is None else min(MIN_WIDTH_BYTES, MIN_WIDTH_RATIO * passing_bytes)
    below, above = (max(least, ratio * passing_bytes) for ratio in ratios.allocated)
    tensors = _around(allocated, below, above, minimum=allocated - passing_bytes)
    intervals = {"allocated": tensors}
    if reserved is not None:
        below, above = (max(least, ratio * passing_bytes) for ratio in ratios.reserved)
        intervals["reserved"] = _around(reserved, below, above, minimum=tensors[0])
    if device is not None:
        below, above = (max(least, ratio * passing_bytes) for ratio in ratios.device)
        lower, higher = context or (0, 0)
        intervals["device"] = _around(
            device, hypot(below, lower), hypot(above, higher), minimum=tensors[0]
        )
    return intervals


def context_widths(size_bytes: int, interval: Interval | None) -> Interval | None:
    """Return the (below, above) of a context that wasn't measured."""
    if interval is None:
        return None
    low, high = interval
    return max(0, size_bytes - low), max(0, high - size_bytes)


def _around(middle: int, below: float, above: float, *, minimum: float) -> Interval:
    """Return the interval; it doesn't start below the minimum."""
    return min(middle, max(round(middle - below), round(minimum), 0)), round(middle + above)
