"""`PYTORCH_CUDA_ALLOC_CONF` as torch reads it, and the sizes that follow from it.

Sources: pytorch `c10/core/AllocatorConfig.cpp` (2.10 and later), `c10/cuda/CUDAAllocatorConfig.cpp`
(before), and for the sizes `c10/cuda/CUDACachingAllocator.cpp`. If they differ, `torch_version`
decides. The parser accepts and ignores options without effect on sizes (pinned memory, locks).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any

from memagent.errors import EstimateError, SettingError
from memagent.units import MIB

MIN_BLOCK = 512
"""The allocator rounds every size up to a multiple of this."""
SMALL_SIZE = MIB
"""The largest request that the small pool serves."""
SMALL_SEGMENT = 2 * MIB
"""The size of a segment of the small pool."""
MIN_LARGE_ALLOC = 10 * MIB
"""Requests from this size on get a segment of that size, rounded up to `ROUND_LARGE`."""
ROUND_LARGE = 2 * MIB
LARGE_SEGMENT = 20 * MIB
UNLIMITED = 2**62
INTERVALS = 16
"""Power-of-two intervals that may have different divisions: 1 MiB to 64 GiB."""

_CORE_PARSER = (2, 10)
"""The torch version with one parser for all devices, fractions in the text, and limits that always
hold."""
_NEWEST = (99, 0)
_IGNORED = re.compile(
    "backend|release_lock_on_(cuda|hip)malloc|pinned_use_(cuda|hip)_host_register"
    "|pinned_(num_register_threads|use_background_threads|reserve_segment_size_mb|free_catch_all)"
    "|pinned_(max_round_threshold_mb|max_cached_size_mb)|graph_capture_record_stream_reuse"
    "|throw_on_cudamalloc_oom"
)
"""Options without effect on sizes."""


@dataclass(frozen=True)
class AllocatorConfig:
    """Settings of the allocator. Sizes are bytes; the defaults are those of torch 2.13.

    - `max_split_bytes`: blocks of this size are never split.
    - `max_non_split_rounding_bytes`: the most by which such a block may exceed the request.
    - `roundup_power2_divisions`: empty, or a number for each interval from 1 MiB up.
    - `memory_fraction`: the share of the device that the process may reserve. None means no limit
      (torch before 2.10).
    """

    max_split_bytes: int = UNLIMITED
    max_non_split_rounding_bytes: int = LARGE_SEGMENT
    roundup_power2_divisions: tuple[int, ...] = ()
    garbage_collection_threshold: float = 0.0
    expandable_segments: bool = False
    large_segment_bytes: int = LARGE_SEGMENT
    memory_fraction: float | None = 1.0

    @classmethod
    def parse(cls, text: str | None, torch_version: str | None = None) -> AllocatorConfig:
        """Parse the value of PYTORCH_CUDA_ALLOC_CONF; empty or None gives the defaults.

        Raises SettingError if torch would refuse to start, and EstimateError for
        `backend:cudaMallocAsync`, which is a different allocator.
        """
        match = re.match(r"(\d+)\.(\d+)", torch_version or "")
        version = (int(match[1]), int(match[2])) if match else _NEWEST
        options = _split_options(text or "")
        config = cls(memory_fraction=1.0 if version >= _CORE_PARSER else None)
        if "large_segment_size_mb" in options:  # first: other limits depend on it
            config = _with_large_segment(config, options.pop("large_segment_size_mb"))
        for name, value in options.items():
            config = _with_option(config, name, value, version)
        return config

    def divisions_for(self, size: int) -> int:
        """Return the steps between two powers of two that `size` is rounded to; 0 for none."""
        if not self.roundup_power2_divisions:
            return 0
        # 1 MiB has 21 bits: the first interval
        interval = min(max(size.bit_length() - 21, 0), INTERVALS - 1)
        return self.roundup_power2_divisions[interval]


def round_size(size: int, config: AllocatorConfig) -> int:
    """Return the bytes of the block for a request of `size` bytes (`round_size`)."""
    if size < MIN_BLOCK:
        return MIN_BLOCK
    divisions = config.divisions_for(size)
    # below that, a division would be smaller than a block
    if divisions > 1 and size > MIN_BLOCK * divisions:
        return next_division(size, divisions)
    return (size + MIN_BLOCK - 1) // MIN_BLOCK * MIN_BLOCK


def next_division(size: int, divisions: int) -> int:
    """Round up to one of `divisions` equal steps between two powers of two: 1200 in 4 is 1280.

    Source: `roundup_power2_next_division`.
    """
    floor = 1 << (size.bit_length() - 1)
    if size == floor:
        return size
    step = floor >> (divisions.bit_length() - 1)
    if step == 0:
        return floor << 1
    return (size + step - 1) // step * step


def segment_size(rounded: int, config: AllocatorConfig) -> int:
    """Return the bytes to request from the device for a rounded size (`get_allocation_size`)."""
    if rounded <= SMALL_SIZE:
        return SMALL_SEGMENT
    if rounded < MIN_LARGE_ALLOC:
        return config.large_segment_bytes
    return (rounded + ROUND_LARGE - 1) // ROUND_LARGE * ROUND_LARGE


def page_size(*, small: bool, config: AllocatorConfig) -> int:
    """Return the bytes of one physical page of an expandable segment."""
    return SMALL_SEGMENT if small else config.large_segment_bytes


def _split_options(text: str) -> dict[str, str]:
    """Split into options; commas in brackets belong to the value. The last of two counts."""
    options: dict[str, str] = {}
    for part in re.split(r",(?![^\[]*\])", re.sub(r"\s", "", text)):
        if not part:
            continue
        name, colon, value = part.partition(":")
        if not colon or not value or value.count("[") != value.count("]"):
            raise _error(f"{part!r} is not a name and a value as in max_split_size_mb:128")
        options[name] = value
    return options


def _with_large_segment(config: AllocatorConfig, value: str) -> AllocatorConfig:
    mib = _parse_int("large_segment_size_mb", value)
    if mib <= MIN_LARGE_ALLOC // MIB:
        raise _error(f"large_segment_size_mb is {mib}: it must be more than 10")
    return replace(config, large_segment_bytes=mib * MIB, max_non_split_rounding_bytes=mib * MIB)


def _with_option(
    config: AllocatorConfig, name: str, value: str, version: tuple[int, int]
) -> AllocatorConfig:
    changes: dict[str, Any] = {}
    match name:
        case "max_split_size_mb":
            changes["max_split_bytes"] = _parse_limit(name, value, config)
        case "max_non_split_rounding_mb":
            changes["max_non_split_rounding_bytes"] = _parse_limit(name, value, config)
        case "garbage_collection_threshold":
            changes[name] = _parse_fraction(name, value, below_one=True)
        case "per_process_memory_fraction":
            changes["memory_fraction"] = _parse_fraction(name, value, below_one=False)
        case "roundup_power2_divisions":
            changes[name] = _parse_divisions(value, version)
        case "expandable_segments":
            if value not in {"True", "False"}:
                raise _error(f"{name} is {value!r}: write True or False")
            changes[name] = value == "True"
        case "backend" if value.lower().endswith("mallocasync"):
            raise EstimateError(
                f"backend:{value} is CUDA's own allocator, which the estimator doesn't simulate. "
                "Estimate with the native one."
            )
        case _ if not _IGNORED.fullmatch(name):
            raise _error(f"torch has no option {name!r}; check its spelling")
    return replace(config, **changes)


def _parse_limit(name: str, value: str, config: AllocatorConfig) -> int:
    mib = _parse_int(name, value)
    minimum = config.large_segment_bytes // MIB
    if mib < minimum:
        raise _error(f"{name} is {mib}: it must be at least {minimum}")
    # more than any device has means no limit
    return min(mib * MIB, UNLIMITED)


def _parse_divisions(value: str, version: tuple[int, int]) -> tuple[int, ...]:
    """Parse `4` for all intervals, or `[256:1,512:2,>:8]` by MiB; fill gaps the way torch does."""
    name = "roundup_power2_divisions"
    if not value.startswith("["):
        return (_parse_power_of_two(name, value),) * INTERVALS
    table = [0] * INTERVALS
    last = -1
    for pair in value.strip("[]").split(","):
        start, colon, count = pair.partition(":")
        if not colon:
            raise _error(f"{name} has {pair!r}, not a pair as in 256:1")
        divisions = 0 if count == "0" else _parse_power_of_two(name, count)
        if start == ">":
            # Before the core parser, `>` also overwrote the last named interval: an off-by-one
            # error of torch.
            first = max(last, 0) + (1 if version >= _CORE_PARSER else 0)
            table[first:] = [divisions] * (INTERVALS - first)
            continue
        index = min(_parse_power_of_two(name, start).bit_length() - 1, INTERVALS - 1)
        if last < 0:
            table[:index] = [divisions] * index
        table[index] = divisions
        last = index
    return tuple(table)


def _parse_int(name: str, value: str) -> int:
    if not value.isdecimal():
        raise _error(f"{name} is {value!r}: it must be a whole number")
    return int(value)


def _parse_power_of_two(name: str, value: str) -> int:
    number = _parse_int(name, value)
    if number < 1 or number & (number - 1):
        raise _error(f"{name} has {number}, which is not a power of two")
    return number


def _parse_fraction(name: str, value: str, *, below_one: bool) -> float:
    try:
        number = float(value)
    except ValueError:
        number = -1.0
    if not (0.0 < number < 1.0 if below_one else 0.0 <= number <= 1.0):
        raise _error(f"{name} is {value}: it must be between 0 and 1")
    return number


def _error(problem: str) -> SettingError:
    return SettingError(f"PYTORCH_CUDA_ALLOC_CONF: {problem}")
