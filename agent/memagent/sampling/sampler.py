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
6. Without a GPU, short steps that repeat each other are mostly read once, at their end
   (`repetition`). Anything but the usual phases and input size has the rest of the step read in
   full.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from memagent.components import Components
from memagent.delivery.buffer import DroppedSamples, Row, SampleBuffer
from memagent.probe import Probe, RawReading
from memagent.sampling.repetition import FULL_EVERY, MAX_STEP_S, RepetitionDetector
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
_FORWARD = "forward"
_OPTIMIZER = "optimizer"
_PHASES = frozenset(PHASES)
_INPUT_SIZE = HEAD_COLUMNS.index("input_size")
_NO_PHASES = (None,) * len(PHASES)

Head = tuple[Value, ...]
"""Values of HEAD_COLUMNS."""
Marks = list[tuple[str, RawReading]]
Entry = tuple[Head | None, Marks | None, RawReading | None, str, tuple[Value, ...]]
"""Head (None: the step goes on), marks (None: of a step that was read at its end only), reading at
the end of the step, its phase, components."""


class Track:
    """One device: raw readings on the training thread, rows on the collector's."""

    def __init__(self, probe: Probe, drops: DroppedSamples, phases: bool) -> None:
        self.probe = probe
        columns = (*HEAD_COLUMNS, *probe.columns, *TAIL_COLUMNS)
        self.buffer = SampleBuffer(probe.device.id, columns, drops, self.build_row)
        self.components: tuple[Value, ...] = (None, None, None, None)
        self.marks: Marks = []
        """Phases that ended in this step, with the reading at the end of each."""
        self.repetition = RepetitionDetector()
        self._phases = phases
        self._peaks: dict[str, int] = {}
        self.past_peak, readings = probe.readings(probe.sample())
        self.floor: int = readings[0]  # type: ignore[assignment]
        self.total_peak = self.floor

    def flush(self, head: Head | None, phase: str) -> None:
        """Buffer the marks so far; with `head`, the step ends here, in `phase`, and is sampled."""
        marks, self.marks = self.marks, []
        try:
            sample = self.probe.sample() if head is not None else None
        except OSError:
            sample = self.reopened_mark()
        self.buffer.append((head, marks, sample, phase, self.components))

    def flush_end(self, head: Head, phase: str) -> None:
        """Buffer the end of a step that repeats those before it, by a mark in place of a sample."""
        try:
            mark = self.probe.mark()
        except OSError:
            mark = self.reopened_mark()
        self.buffer.append((head, None, mark, phase, self.components))

    def reopened_mark(self) -> RawReading:
        """Return a mark after the script has closed all files; an empty one counts as the last."""
        self.probe.refresh()
        try:
            return self.probe.mark()
        except OSError:
            return b""

    def build_row(self, entry: Entry) -> Row | None:
        """Build the row of a buffered entry, or return None if no step ended with it."""
        head, marks, sample, phase, components = entry
        if marks is None:
            return self._row_of_repetition(entry)
        # A probe must interpret its readings in the order in which it took them: marks first.
        for ended_phase, mark in marks:
            self._add_peak(ended_phase, self.probe.peak(mark))
        if head is None:
            return None  # the peaks so far wait for the entry that ends the step
        last_peak, readings = self.probe.readings(sample)
        self._add_peak(phase, last_peak)
        peaks, self._peaks = self._peaks, {}
        self.repetition.observe(head[_INPUT_SIZE], readings[0], peaks)  # type: ignore[arg-type]
        return self._row(head, readings, components, peaks, max(peaks.values()))

    def _row_of_repetition(self, entry: Entry) -> Row:
        head, _, mark, _, components = entry
        assert head is not None
        last_peak, readings = self.probe.readings(mark)
        peaks = self.repetition.peaks_at(head[_INPUT_SIZE], readings[0], last_peak)  # type: ignore[arg-type]
        return self._row(head, readings, components, peaks, max(last_peak, *peaks.values(), 0))

    def _row(
        self,
        head: Head,
        readings: tuple[Value, ...],
        components: tuple[Value, ...],
        peaks: dict[str, int],
        peak: int,
    ) -> Row:
        self.total_peak = max(self.total_peak, peak)
        # Activations are what forward and backward take above what was allocated when the step
        # before ended. What an optimizer allocates meanwhile (`foreach`) is its own.
        of_model = [value for name, value in peaks.items() if name != _OPTIMIZER]
        activations = max(0, max(of_model, default=peak) - self.floor) if peaks else None
        self.floor = readings[0]  # type: ignore[assignment]
        by_phase = tuple(map(peaks.get, PHASES)) if self._phases else _NO_PHASES
        extra: dict[str, Value] | None = None
        if not peaks.keys() <= _PHASES:
            extra = {
                f"phase_{name}_peak_bytes": value
                for name, value in peaks.items()
                if name not in _PHASES
            }
        tail = (peak, *components, activations, self.probe.context_bytes, *by_phase)
        return (*head, *readings, *tail), extra

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
        self.has_work = True
        """A part of the run has work for the training thread at the end of this step."""
        self._every = every
        self._drops = drops
        self._user_phase: str | None = None
        gpus = [track for track in self.tracks if track.probe.device.kind != "host"]
        self._marked_tracks = gpus or self.tracks
        self._may_repeat = phases and every == 1 and not gpus
        self.is_repetition = False
        """This step is read at its end only, so far. Hooks then change `phase` themselves."""
        self.repeated_input_size: int | None = None
        self._sampled_at = time.perf_counter()
        self._sampled_step = 0

    def request_work(self) -> None:
        """Have the step listeners called at the end of this step; on any thread."""
        self.has_work = True

    def begin_forward(self, input_size: int) -> None:
        """Change to the phase forward, with so many more elements of input."""
        self.input_size += input_size
        if self.is_repetition:
            if self.input_size == self.repeated_input_size:
                self.phase = _FORWARD
                return
            self.is_repetition = False
        self.set_phase(_FORWARD)

    def set_phase(self, phase: str) -> None:
        """Change the phase that hooks see; ignored inside a phase that the user opened."""
        if self._user_phase is None:
            if self.is_repetition and phase in _PHASES:
                self.phase = phase
            else:
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

    def end_repetition(self) -> bool:
        """Do what `end_step` does to a step that `is_repetition`, and call no Python functions.

        torch.compile must skip this function: see `StepDispatcher`. Returns whether a part of the
        run has work.
        """
        track = self.tracks[0]
        try:
            mark = track.probe.mark()
        except OSError:
            mark = track.reopened_mark()
        now = time.perf_counter()
        self.step = step = self.step + 1
        step_s = now - self._sampled_at
        head = (step, time.time(), step_s, self.input_size or None)
        buffer = track.buffer
        if len(buffer.entries) < buffer.max_rows:
            buffer.entries.append((head, None, mark, self.phase, track.components))
        else:
            self._drops["buffer_full"] += 1
        self.phase = _DATA
        self.samples += 1
        self.input_size = 0
        self._sampled_at = now
        self._sampled_step = step
        self.is_repetition = (
            track.repetition.is_repeating and step % FULL_EVERY > 0 and step_s < MAX_STEP_S
        )
        self.repeated_input_size = track.repetition.input_size
        return self.has_work

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
        self.is_repetition = False
        ended_phase, self.phase = self.phase, phase
        for track in self._marked_tracks:
            try:
                mark = track.probe.mark()
            except OSError:
                mark = track.reopened_mark()
            track.marks.append((ended_phase, mark))
            if len(track.marks) >= MAX_MARKS:
                track.flush(None, ended_phase)

    def _write_rows(self) -> None:
        now = time.perf_counter()
        steps = self.step - self._sampled_step
        step_s = (now - self._sampled_at) / steps if steps else None
        head = (self.step, time.time(), step_s, self.input_size or None)
        ended_phase, self.phase = self.phase, self._user_phase or _DATA
        if self.is_repetition:
            self.tracks[0].flush_end(head, ended_phase)
        else:
            for track in self.tracks:
                track.flush(head, ended_phase)
        self.samples += 1
        self.input_size = 0
        self._sampled_at = now
        self._sampled_step = self.step
        self.is_repetition = bool(
            self._may_repeat
            and self.tracks[0].repetition.is_repeating
            and self.step % FULL_EVERY
            and step_s
            and step_s < MAX_STEP_S
            and self._user_phase is None
        )
        self.repeated_input_size = self.tracks[0].repetition.input_size
