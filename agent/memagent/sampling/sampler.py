"""Samples a training loop: hooks mark phases, probes are read, rows are buffered.

1. Calls of `set_phase` cut a step into phases. The device's peak since the last mark belongs to the
   phase that ends there.
2. At the end of an optimizer step a row is written for each device, every `every` steps; peaks
   cover the steps skipped between.
3. A phase that the user opened lasts until the user closes it; hooks don't change it.
4. If a model trains on a GPU, the host is read at the end of steps only: peaks of its phases aren't
   worth a system call.
5. The training thread only takes raw readings and appends them to lists; `Track.build_row` turns
   them into rows on the collector's thread.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from memagent.components import Components
from memagent.delivery.buffer import DroppedSamples, Row, SampleBuffer
from memagent.probe import Probe, RawReading
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
MAX_MARKS = 1_000
"""Marks of one step in memory before they are flushed: a long evaluation makes millions of them."""

_DATA = PHASES[0]
_OPTIMIZER = "optimizer"
_NO_PHASES = (None,) * len(PHASES)

Head = tuple[Value, ...]
"""Values of HEAD_COLUMNS."""
Entry = tuple[Head | None, list[tuple[str, RawReading]], RawReading | None, str, tuple[Value, ...]]
"""Head (None: the step goes on), marks, reading at the end of the step, its phase, components."""


class Track:
    """One device: raw readings on the training thread, rows on the collector's."""

    def __init__(self, probe: Probe, drops: DroppedSamples, phases: bool) -> None:
        self.probe = probe
        columns = (*HEAD_COLUMNS, *probe.columns, *TAIL_COLUMNS)
        self.buffer = SampleBuffer(probe.device.id, columns, drops, self.build_row)
        self.components: tuple[Value, ...] = (None, None, None, None)
        self.marks: list[tuple[str, RawReading]] = []
        """Phases that ended in this step, with the reading at the end of each."""
        self._phases = phases
        self._peaks: dict[str, int] = {}
        self.past_peak, readings = probe.readings(probe.sample())
        self.floor: int = readings[0]  # type: ignore[assignment]
        self.total_peak = self.floor

    def flush(self, head: Head | None, phase: str) -> None:
        """Buffer the marks so far; with `head`, the step ends here, in `phase`, and is sampled."""
        marks, self.marks = self.marks, []
        sample = self.probe.sample() if head is not None else None
        self.buffer.append((head, marks, sample, phase, self.components))

    def build_row(self, entry: Entry) -> Row | None:
        """Build the row of a buffered entry, or return None if no step ended with it."""
        head, marks, sample, phase, components = entry
        # A probe must interpret its readings in the order in which it took them: marks first.
        for ended_phase, mark in marks:
            self._add_peak(ended_phase, self.probe.peak(mark))
        if head is None:
            return None  # the peaks so far wait for the entry that ends the step
        last_peak, readings = self.probe.readings(sample)
        self._add_peak(phase, last_peak)
        peaks, self._peaks = self._peaks, {}
        peak = max(peaks.values())
        self.total_peak = max(self.total_peak, peak)
        # Activations are what forward and backward take above what was allocated when the step
        # before ended. What an optimizer allocates meanwhile (`foreach`) is its own.
        of_model = [value for name, value in peaks.items() if name != _OPTIMIZER]
        activations = max(0, max(of_model, default=peak) - self.floor)
        self.floor = readings[0]  # type: ignore[assignment]
        by_phase = tuple(peaks.get(name) for name in PHASES) if self._phases else _NO_PHASES
        extra: dict[str, Value] = {
            f"phase_{name}_peak_bytes": value for name, value in peaks.items() if name not in PHASES
        }
        tail = (peak, *components, activations, self.probe.context_bytes, *by_phase)
        return (*head, *readings, *tail), extra or None

    def components_by_name(self) -> dict[str, Value]:
        names = ("parameters", "gradients", "optimizer_state", "buffers")
        return dict(zip(names, self.components, strict=True))

    def _add_peak(self, phase: str, peak: int) -> None:
        self._peaks[phase] = max(self._peaks.get(phase, 0), peak)


class Sampler:
    """Rows for `probes`; `step` counts optimizer steps that ended.

    Without `phases` only the peak of the whole step is recorded.
    """

    def __init__(
        self, probes: Sequence[Probe], drops: DroppedSamples, every: int = 1, *, phases: bool = True
    ) -> None:
        self.tracks = [Track(probe, drops, phases) for probe in probes]
        self.step = 0
        self.samples = 0
        self.input_size = 0
        self.phase = _DATA
        self._every = every
        self._drops = drops
        self._user_phase: str | None = None
        gpus = [track for track in self.tracks if track.probe.device.kind != "host"]
        self._marked_tracks = gpus or self.tracks
        self._sampled_at = time.perf_counter()
        self._sampled_step = 0

    def set_phase(self, phase: str) -> None:
        """Change the phase that hooks see; ignored inside a phase that the user opened."""
        if self._user_phase is None:
            self._mark(phase)

    def set_user_phase(self, phase: str | None) -> str | None:
        """Open a phase of the user's, or close it by None or the outer one; return the old one."""
        before, self._user_phase = self._user_phase, phase
        self._mark(phase or _DATA)
        return before

    def end_step(self) -> bool:
        """Count an optimizer step; return True if it was sampled."""
        self.step += 1
        if self.step % self._every:
            self._mark(self._user_phase or _DATA)
            return False
        self._write_rows()
        return True

    def count_late(self, steps: int) -> None:
        """Count steps that ended before they were known to be the run's: their samples are lost."""
        lost = (self.step + steps) // self._every - self.step // self._every
        self.step += steps
        if lost:
            self._drops["counted_late"] += lost * len(self.tracks)

    def include_past_peaks(self) -> None:
        """Count peaks from before the run, as far as torch and the kernel know them."""
        for track in self.tracks:
            past_peak = max(track.past_peak, track.probe.past_peak_bytes)
            track.total_peak = max(track.total_peak, past_peak)

    def sample_start(self) -> None:
        """Sample step 0, so that a run that dies in its first step has a sample too."""
        self._write_rows()

    def set_components(
        self, components: Sequence[Components], *, with_gradients: bool = True
    ) -> None:
        """Set the bytes by component of the rows to come, one entry for each track."""
        for track, sizes in zip(self.tracks, components, strict=True):
            track.components = (
                sizes.parameters_bytes,
                sizes.gradients_bytes if with_gradients else None,
                sizes.optimizer_state_bytes,
                sizes.buffers_bytes,
            )

    def _mark(self, phase: str) -> None:
        ended_phase, self.phase = self.phase, phase
        for track in self._marked_tracks:
            track.marks.append((ended_phase, track.probe.mark()))
            if len(track.marks) >= MAX_MARKS:
                track.flush(None, ended_phase)

    def _write_rows(self) -> None:
        now = time.perf_counter()
        steps = self.step - self._sampled_step
        step_s = (now - self._sampled_at) / steps if steps else None
        head = (self.step, time.time(), step_s, self.input_size or None)
        ended_phase, self.phase = self.phase, self._user_phase or _DATA
        for track in self.tracks:
            track.flush(head, ended_phase)
        self.samples += 1
        self.input_size = 0
        self._sampled_at = now
        self._sampled_step = self.step
