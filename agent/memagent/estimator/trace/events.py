"""A trace: every allocation and release of a tensor storage in a training step, in order.

Plain values without torch. An event's size is the one that the program requested, in bytes, before
the allocator rounds it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields
from typing import Literal

EventKind = Literal["alloc", "free"]

PHASES = ("data", "forward", "backward", "optimizer")
"""The phases of a step. The model itself is put on the device in `data` of step 0."""


@dataclass(frozen=True, slots=True)
class MemoryEvent:
    """The allocation or release of one storage.

    `step` 0 is the warm-up, in which the optimizer creates its state; 1 and later are steady.
    """

    kind: EventKind
    storage: int
    size_bytes: int
    index: int
    phase: str
    step: int
    component: str
    shape: tuple[int, ...] = ()
    dtype: str = ""
    module: str = ""
    source: str = ""
    op: str = ""


@dataclass(frozen=True, slots=True)
class LiveTensor:
    """A storage that is alive at the peak; the fields are those of its allocation."""

    size_bytes: int
    component: str
    phase: str
    shape: tuple[int, ...]
    dtype: str
    module: str
    source: str
    op: str


_LIVE_TENSOR_FIELDS = tuple(item.name for item in fields(LiveTensor))


@dataclass(frozen=True, slots=True)
class TraceSummary:
    """Peaks of the unrounded sum of live bytes, and the content of the highest one.

    `phase_peak_bytes` covers the last step (a steady one), `warmup_peak_bytes` step 0. `components`
    and `top` describe the peak.
    """

    peak_bytes: int
    peak_phase: str
    peak_step: int
    peak_index: int
    warmup_peak_bytes: int
    steady_peak_bytes: int
    phase_peak_bytes: dict[str, int]
    components: dict[str, int]
    top: tuple[LiveTensor, ...]


@dataclass(frozen=True)
class Trace:
    """The events of one traced run, and the device rules that it ran under.

    `device_rules` is "cuda" (CUDA tensors), "cuda-on-cpu" (CPU tensors with some of CUDA's rules:
    see `notes`) or "cpu". `parameters_bytes` counts each storage once. `processor_s` is the time
    that the trace took of its process.

    By the path of a module: `operations` are floating-point operations of its own, in all forwards
    (torch/utils/flop_counter.py), `arguments` and `outputs` the storages of what it was given and
    returned in forward.
    """

    events: tuple[MemoryEvent, ...]
    steps: int
    parameters_bytes: int
    parameters: int
    device_rules: str
    torch_version: str = ""
    optimizer: str = ""
    notes: tuple[str, ...] = ()
    processor_s: float = 0.0
    growth_bytes: int = 0
    hidden_ops: tuple[str, ...] = ()
    operations: dict[str, int] = field(default_factory=dict)
    arguments: dict[str, tuple[int, ...]] = field(default_factory=dict)
    outputs: dict[str, tuple[int, ...]] = field(default_factory=dict)
    model_class: str = ""

    @property
    def peak_bytes(self) -> int:
        """The most bytes alive at once, as requested (unrounded)."""
        return self.summary(top=0).peak_bytes

    def summary(self, *, top: int = 20) -> TraceSummary:
        """Return peaks by phase and step, and the `top` largest tensors at the highest peak."""
        peaks = _peaks(self.events)
        if not peaks:
            return TraceSummary(0, "", 0, 0, 0, 0, {}, {}, ())
        (step, phase), (peak, index) = max(peaks.items(), key=lambda item: item[1][0])
        live = _live_events(self.events, index)
        components: Counter[str] = Counter()
        for event in live:
            components[event.component] += event.size_bytes
        largest = sorted(live, key=lambda event: -event.size_bytes)[:top]
        last = self.steps - 1
        return TraceSummary(
            peak_bytes=peak,
            peak_phase=phase,
            peak_step=step,
            peak_index=index,
            warmup_peak_bytes=_step_peak(peaks, 0),
            steady_peak_bytes=_step_peak(peaks, last),
            phase_peak_bytes={
                name: peaks[last, name][0] for name in PHASES if (last, name) in peaks
            },
            components=dict(components.most_common()),
            top=tuple(
                LiveTensor(*(getattr(event, name) for name in _LIVE_TENSOR_FIELDS))
                for event in largest
            ),
        )


Peaks = dict[tuple[int, str], tuple[int, int]]
"""The highest sum of live bytes and the event's index, by step and phase."""


def _peaks(events: Iterable[MemoryEvent]) -> Peaks:
    live, peaks = 0, Peaks()
    for event in events:
        live += event.size_bytes if event.kind == "alloc" else -event.size_bytes
        key = (event.step, event.phase)
        if live > peaks.get(key, (-1, 0))[0]:
            peaks[key] = (live, event.index)
    return peaks


def _step_peak(peaks: Peaks, step: int) -> int:
    return max(
        (peak for (peak_step, _), (peak, _) in peaks.items() if peak_step == step), default=0
    )


def _live_events(events: Sequence[MemoryEvent], index: int) -> list[MemoryEvent]:
    """Return the allocations that are alive just after the event `index`."""
    live: dict[int, MemoryEvent] = {}
    for event in events:
        if event.index > index:
            break
        if event.kind == "alloc":
            live[event.storage] = event
        else:
            live.pop(event.storage, None)
    return list(live.values())
