"""`PYTORCH_CUDA_ALLOC_CONF` as torch reads it, in one frozen value.

Source: pytorch `c10/core/AllocatorConfig.cpp` (2.10 and later) and `c10/cuda/CUDAAllocatorConfig.cpp` (before); where
they differ, `torch_version` decides. Options that change no size (pinned memory, locks) are accepted and ignored.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from memagent.errors import EstimateError, SettingError
from memagent.units import MIB

INTERVALS = 16  # power-of-two intervals that can have divisions of their own: 1 MiB to 64 GiB
LARGE_SEGMENT = 20 * MIB
UNLIMITED = 2**62
_MIN_LARGE_ALLOC_MB = 10
_VARIABLES = (
    "PYTORCH_ALLOC_CONF",
    "PYTORCH_CUDA_ALLOC_CONF",
    "PYTORCH_HIP_ALLOC_CONF",
)  # the first set one counts
# One core parser for all devices, fractions from the text, and limits that always hold came together with this version.
_CORE_PARSER = (2, 10)
_WITHOUT_EFFECT = frozenset({
    "backend",
    "release_lock_on_cudamalloc", "release_lock_on_hipmalloc",
    "pinned_use_cuda_host_register", "pinned_use_hip_host_register", "pinned_num_register_threads",
    "pinned_use_background_threads", "pinned_reserve_segment_size_mb", "pinned_free_catch_all",
    "pinned_max_round_threshold_mb", "pinned_max_cached_size_mb",
    "graph_capture_record_stream_reuse", "throw_on_cudamalloc_oom",
})  # fmt: skip


@dataclass(frozen=True)
class AllocatorConfig:
    """What the allocator was told. Sizes in bytes; the defaults are those of the newest torch known (2.13).

    `max_split_bytes`: blocks this large are never split; `max_non_split_rounding_bytes`: how much larger than asked such
    a block may be; `roundup_power2_divisions`: one number for each interval from 1 MiB up, or empty;
    `memory_fraction`: part of the device this process may reserve, None for no limit (torch before 2.10).
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
        """The configuration that `text` (as in PYTORCH_CUDA_ALLOC_CONF) gives; empty or None gives the defaults.

        Raises SettingError where torch would refuse to start, EstimateError for `backend:cudaMallocAsync`, which is
        another allocator altogether.
        """
        version = _version(torch_version)
        options = _options(text or "")
        config = cls(memory_fraction=1.0 if version >= _CORE_PARSER else None)
        if "large_segment_size_mb" in options:  # first: other limits depend on it
            config = _with_large_segment(config, options.pop("large_segment_size_mb"))
        for name, value in options.items():
            config = _with_option(config, name, value, version)
        return config

    @classmethod
    def from_environment(
        cls, environment: Mapping[str, str], torch_version: str | None = None
    ) -> AllocatorConfig:
        """The configuration of a process with these environment variables; raises as `parse` does."""
        text = next((environment[name] for name in _VARIABLES if name in environment), None)
        return cls.parse(text, torch_version)

    @classmethod
    def from_snapshot(cls, snapshot: Mapping[str, Any]) -> AllocatorConfig:
        """The configuration recorded in a `torch.cuda.memory._snapshot()`; what it does not tell has its default."""
        told = snapshot.get("allocator_settings") or {}
        split = int(told.get("max_split_size", -1))
        divisions = told.get("roundup_power2_divisions") or {}
        known = tuple(int(divisions[key]) for key in sorted(divisions, key=int))
        config = _large_segment_of_text(str(told.get("PYTORCH_CUDA_ALLOC_CONF") or ""))
        return replace(
            config,
            max_split_bytes=split if 0 < split < UNLIMITED else UNLIMITED,
            roundup_power2_divisions=known if any(known) else (),
            garbage_collection_threshold=float(told.get("garbage_collection_threshold", 0.0)),
            expandable_segments=bool(told.get("expandable_segments", False)),
        )

    def divisions_for(self, size: int) -> int:
        """Steps between two powers of two that a request of `size` bytes is rounded up to; 0 for none."""
        if not self.roundup_power2_divisions:
            return 0
        interval = min(max(size.bit_length() - 21, 0), INTERVALS - 1)
        return self.roundup_power2_divisions[interval]


def _large_segment_of_text(text: str) -> AllocatorConfig:
    match = re.search(r"large_segment_size_mb\s*:\s*(\d+)", text)
    return _with_large_segment(AllocatorConfig(), match[1]) if match else AllocatorConfig()


def _version(text: str | None) -> tuple[int, int]:
    match = re.match(r"(\d+)\.(\d+)", text) if text else None
    return (int(match[1]), int(match[2])) if match else (99, 0)


def _options(text: str) -> dict[str, str]:
    """AttachOptions by name; commas inside brackets belong to the value. The last of two counts, as in torch."""
    found: dict[str, str] = {}
    for part in re.split(r",(?![^\[]*\])", re.sub(r"\s", "", text)):
        if not part:
            continue
        name, colon, value = part.partition(":")
        if not colon or not value or value.count("[") != value.count("]"):
            raise SettingError(
                f"PYTORCH_CUDA_ALLOC_CONF: {part!r} is not a name and a value as in max_split_size_mb:128"
            )
        found[name] = value
    return found


def _with_large_segment(config: AllocatorConfig, value: str) -> AllocatorConfig:
    size = _whole("large_segment_size_mb", value)
    if size <= _MIN_LARGE_ALLOC_MB:
        raise SettingError(
            f"PYTORCH_CUDA_ALLOC_CONF: large_segment_size_mb is {size}: it must be more than 10"
        )
    return replace(config, large_segment_bytes=size * MIB, max_non_split_rounding_bytes=size * MIB)


def _with_option(
    config: AllocatorConfig, name: str, value: str, version: tuple[int, int]
) -> AllocatorConfig:
    changes: dict[str, Any] = {}
    if name == "max_split_size_mb":
        changes["max_split_bytes"] = _at_least_a_segment(name, value, config)
    elif name == "max_non_split_rounding_mb":
        changes["max_non_split_rounding_bytes"] = _at_least_a_segment(name, value, config)
    elif name == "garbage_collection_threshold":
        changes["garbage_collection_threshold"] = _fraction(name, value, below_one=True)
    elif name == "per_process_memory_fraction":
        changes["memory_fraction"] = _fraction(name, value, below_one=False)
    elif name == "roundup_power2_divisions":
        changes["roundup_power2_divisions"] = _divisions(value, version)
    elif name == "expandable_segments":
        changes["expandable_segments"] = _true_or_false(name, value)
    elif name == "backend" and value.lower().endswith("mallocasync"):
        raise EstimateError(
            f"backend:{value} is CUDA's own allocator, which is not simulated; estimate with the native one"
        )
    elif name not in _WITHOUT_EFFECT:
        raise SettingError(
            f"PYTORCH_CUDA_ALLOC_CONF: {name!r} is no option that torch knows; check its spelling"
        )
    return replace(config, **changes)


def _at_least_a_segment(name: str, value: str, config: AllocatorConfig) -> int:
    size = _whole(name, value)
    least = config.large_segment_bytes // MIB
    if size < least:
        raise SettingError(
            f"PYTORCH_CUDA_ALLOC_CONF: {name} is {size}: it must be at least {least}"
        )
    return min(size * MIB, UNLIMITED)


def _divisions(value: str, version: tuple[int, int]) -> tuple[int, ...]:
    """`4` for every interval, or `[256:1,512:2,>:8]` by interval in MiB, filled the way torch fills its table."""
    if not value.startswith("["):
        return (_power_of_two("roundup_power2_divisions", value),) * INTERVALS
    table = [0] * INTERVALS
    last = -1
    for pair in value.strip("[]").split(","):
        start, colon, count = pair.partition(":")
        if not colon:
            raise SettingError(
                f"PYTORCH_CUDA_ALLOC_CONF: roundup_power2_divisions has {pair!r}, not a pair as in 256:1"
            )
        steps = 0 if count == "0" else _power_of_two("roundup_power2_divisions", count)
        if start == ">":
            # Before the core parser, `>` also wrote over the interval named last (an off-by-one of torch).
            first = max(last, 0) + (1 if version >= _CORE_PARSER else 0)
            table[first:] = [steps] * (INTERVALS - first)
            continue
        index = min(
            _power_of_two("roundup_power2_divisions", start).bit_length() - 1, INTERVALS - 1
        )
        if last < 0:
            table[:index] = [steps] * index
        table[index] = steps
        last = index
    return tuple(table)


def _whole(name: str, value: str) -> int:
    if not value.isdecimal():
        raise SettingError(
            f"PYTORCH_CUDA_ALLOC_CONF: {name} is {value!r}: it must be a whole number"
        )
    return int(value)


def _power_of_two(name: str, value: str) -> int:
    number = _whole(name, value)
    if number < 1 or number & (number - 1):
        raise SettingError(
            f"PYTORCH_CUDA_ALLOC_CONF: {name} has {number}, which is no power of two"
        )
    return number


def _fraction(name: str, value: str, *, below_one: bool) -> float:
    try:
        number = float(value)
    except ValueError:
        number = -1.0
    if not (0.0 < number < 1.0 if below_one else 0.0 <= number <= 1.0):
        raise SettingError(
            f"PYTORCH_CUDA_ALLOC_CONF: {name} is {value}: it must lie between 0 and 1"
        )
    return number


def _true_or_false(name: str, value: str) -> bool:
    if value not in {"True", "False"}:
        raise SettingError(f"PYTORCH_CUDA_ALLOC_CONF: {name} is {value!r}: write True or False")
    return value == "True"
