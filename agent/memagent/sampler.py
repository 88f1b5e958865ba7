"""From moments to rows: the hooks say what happens in the loop, probes are read, rows go to the buffers.

1. A step is cut into phases by the moments at which the hooks call `enter`. Each moment is read once; the reading counts for the
   phase that ends and for the one that begins.
2. At the end of an optimizer step a row is written for each device, every `every` steps; peaks cover the steps skipped between.
3. Everything here runs on the training thread between two moments of the user's loop: no lock, no I/O but the probes' own.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from memagent.components import Components
from memagent.delivery.buffer import Drops, SampleBuffer
from memagent.probe import Probe
from memagent.wire.columns import Value
from memagent.wire.fields import PHASES

HEAD_COLUMNS = ("step", "time_s", "step_s", "input_size")
TAIL_COLUMNS = (
    "peak_allocated_bytes",
    "parameters_bytes",
    "gradients_bytes",
    "optimizer_state_bytes",
    "buffers_bytes",
    "activations_bytes",
    "context_bytes",
    *(f"phase_{phase}_peak_bytes" for phase in PHASES),
)


class Track:
    """What is kept of one device between two samples."""

    __slots__ = ("buffer", "components", "context_bytes", "floor", "highest", "peaks", "probe", "total_peak")

    def __init__(self, probe: Probe, drops: Drops) -> None:
        self.probe = probe
        self.buffer = SampleBuffer(probe.device.id, (*HEAD_COLUMNS, *probe.columns, *TAIL_COLUMNS), drops)
        self.components: tuple[Value, ...] = (None, None, None, None)
        self.context_bytes: int | None = None
        self.floor = probe.read()
        self.highest = self.total_peak = self.floor
        self.peaks: dict[str, int] = {}

    def note(self, used: int, ending: str, beginning: str) -> None:
        peaks = self.peaks
        self.highest = max(self.highest, used)
        if used > peaks.get(ending, -1):
            peaks[ending] = used
        if used > peaks.get(beginning, -1):
            peaks[beginning] = used

    def row(self, head: tuple[Value, ...]) -> tuple[tuple[Value, ...], dict[str, Value] | None]:
        sample = self.probe.sample()
        allocated: int = sample[0]  # type: ignore[assignment]
        peak = self.probe.peak(max(self.highest, allocated))
        activations = max(0, peak - self.floor)
        peaks = self.peaks
        row = (
            *head, *sample, peak, *self.components, activations, self.context_bytes,
            peaks.pop("data", None), peaks.pop("forward", None), peaks.pop("backward", None), peaks.pop("optimizer", None),
        )  # fmt: skip
        extra: dict[str, Value] | None = (
            {f"phase_{name}_peak_bytes": value for name, value in peaks.items()} if peaks else None
        )
        self.peaks = {}
        self.floor = self.highest = allocated
        self.total_peak = max(self.total_peak, peak)
        return row, extra


class Sampler:
    """Rows for `probes`; `step` counts optimizer steps that ended."""

    def __init__(self, probes: Sequence[Probe], drops: Drops, every: int = 1) -> None:
        self.tracks = [Track(probe, drops) for probe in probes]
        self.step = 0
        self.samples = 0
        self.input_size = 0
        self.phase = PHASES[0]
        self._every = every
        self._ended_at = time.perf_counter()
        self._sampled_step = 0

    def enter(self, phase: str) -> str:
        """The loop goes from one phase to another; returns the one that ended."""
        ending, self.phase = self.phase, phase
        for track in self.tracks:
            track.note(track.probe.read(), ending, phase)
        return ending

    def end_step(self) -> bool:
        """An optimizer step ended; returns whether it was sampled."""
        self.step += 1
        if self.step % self._every:
            self.enter(PHASES[0])
            return False
        self._write_rows()
        return True

    def sample_start(self) -> None:
        """The sample of step 0, so that even a run that dies in its first step has left one."""
        self._write_rows()

    def set_components(self, components: Sequence[Components]) -> None:
        """Bytes by component, one entry for each track, from now on."""
        for track, found in zip(self.tracks, components, strict=True):
            track.components = (
                found.parameters_bytes,
                found.gradients_bytes,
                found.optimizer_state_bytes,
                found.buffers_bytes,
            )

    def _write_rows(self) -> None:
        now = time.perf_counter()
        steps = self.step - self._sampled_step
        step_s = (now - self._ended_at) / steps if steps else None
        head = (self.step, time.time(), step_s, self.input_size or None)
        ending, self.phase = self.phase, PHASES[0]
        for track in self.tracks:
            row, extra = track.row(head)
            track.buffer.append(row, extra)
            track.note(row[len(head)], ending, PHASES[0])  # type: ignore[arg-type]
        self.samples += 1
        self.input_size = 0
        self._ended_at, self._sampled_step = now, self.step
