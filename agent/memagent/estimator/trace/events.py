"""What a trace is: every birth and death of a tensor storage in a training step, in order. Plain values; no torch.

An event's size is what the program asked the allocator for, in bytes, before the allocator rounds it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

Kind = Literal["alloc", "free"]

PHASES = ("data", "forward", "backward", "optimizer")
"""Where in the step an event happened. The model itself is put on the device in `data` of step 0."""


@dataclass(frozen=True, slots=True)
class MemoryEvent:
    """One storage is born or dies. `step` 0 is the warm-up, in which the optimizer creates its state; 1 and later are
    steady."""

    kind: Kind
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
    """A storage that is alive at the peak."""

    size_bytes: int
    component: str
    phase: str
    shape: tuple[int, ...]
    dtype: str
    module: str
    source: str
    op: str


@dataclass(frozen=True, slots=True)
class TraceSummary:
    """Peaks of the unrounded sum of live bytes, and what it was made of at the highest of them.

    `phase_peak_bytes` is over the last step (the steady one), `warmup_peak_bytes` over step 0; `components` and `top`
    describe the peak.
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
    """The events of one traced run, and under which rules it ran.

    `device_rules` is "cuda" (the tensors were cuda's), "cuda-on-cpu" (cpu tensors with some of CUDA's rules: see
    `notes`) or "cpu". `parameters_bytes` counts each storage once. `retained_bytes` is what stays alive between
    steps.
    """

    events: tuple[MemoryEvent, ...]
    steps: int
    parameters_bytes: int
    parameters: int
    device_rules: str
    torch_version: str = ""
    optimizer: str = ""
    notes: tuple[str, ...] = ()
    duration_s: float = 0.0
    growth_bytes: int = 0
    hidden_ops: tuple[str, ...] = field(default=())

    @property
    def peak_bytes(self) -> int:
        """Most bytes alive at once, as requested (unrounded)."""
        return self.summary(top=0).peak_bytes

    def summary(self, *, top: int = 20) -> TraceSummary:
        """Peaks by phase and step, with components and the `top` largest tensors at the highest peak."""
        peaks = _peaks(self.events)
        if not peaks:
            return TraceSummary(0, "", 0, 0, 0, 0, {}, {}, ())
        (step, phase), (peak, index) = max(peaks.items(), key=lambda item: item[1][0])
        live = _alive(self.events, index)
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
            warmup_peak_bytes=max(
                (high for (at, _), (high, _) in peaks.items() if at == 0), default=0
            ),
            steady_peak_bytes=max(
                (high for (at, _), (high, _) in peaks.items() if at == last), default=0
            ),
            phase_peak_bytes={
                name: peaks[last, name][0] for name in PHASES if (last, name) in peaks
            },
            components=dict(components.most_common()),
            top=tuple(_described(event) for event in largest),
        )

    def retained_bytes(self) -> int:
        """Bytes alive after the last event: what stays between steps."""
        return sum(
            event.size_bytes if event.kind == "alloc" else -event.size_bytes
            for event in self.events
        )


def _peaks(events: Iterable[MemoryEvent]) -> dict[tuple[int, str], tuple[int, int]]:
    """The highest sum of live bytes and the event's index, by step and phase."""
    live, peaks = 0, dict[tuple[int, str], tuple[int, int]]()
    for event in events:
        live += event.size_bytes if event.kind == "alloc" else -event.size_bytes
        where = (event.step, event.phase)
        if live > peaks.get(where, (-1, 0))[0]:
            peaks[where] = (live, event.index)
    return peaks


def _alive(events: Sequence[MemoryEvent], index: int) -> list[MemoryEvent]:
    """The allocations that are alive just after the event of this index."""
    alive: dict[int, MemoryEvent] = {}
    for event in events:
        if event.index > index:
            break
        if event.kind == "alloc":
            alive[event.storage] = event
        else:
            alive.pop(event.storage, None)
    return list(alive.values())


def _described(event: MemoryEvent) -> LiveTensor:
    return LiveTensor(
        event.size_bytes,
        event.component,
        event.phase,
        event.shape,
        event.dtype,
        event.module,
        event.source,
        event.op,
    )
