"""One sampled device: raw readings on the training thread, rows on the collector's."""

from __future__ import annotations

from typing import Any

from memagent.delivery.buffer import DroppedSamples, Row, SampleBuffer
from memagent.probe import Probe, RawReading
from memagent.sampling.repetition import RepetitionDetector
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
_OPTIMIZER = "optimizer"
_PHASES = frozenset(PHASES)
_INPUT_SIZE = HEAD_COLUMNS.index("input_size")
_NO_PHASES = (None,) * len(PHASES)

Head = tuple[Value, ...]
"""Values of HEAD_COLUMNS."""
Marks = list[tuple[str, RawReading]]
Entry = tuple[Head | None, Marks | None, RawReading | None, str, tuple[Value, ...]]
"""Head (None: the step goes on), marks (None: of a repeated step), reading at the end of the step
(None: not taken), its phase, components."""


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
        self._tail: tuple[Value, ...] = ()
        """Values of the newest row after those of HEAD_COLUMNS."""
        self._last_repetition: Any = None
        """Peak, readings and components of the newest row that was read at its end only."""
        self.past_peak, readings = probe.readings(probe.sample())
        self._readings = readings
        self.floor: int = readings[0]  # type: ignore[assignment]
        self.total_peak = self.floor
        self.phase_peaks: dict[str, int] = {}
        """Highest peak of each phase so far; empty if phases aren't recorded."""

    def flush(self, head: Head | None, phase: str) -> None:
        """Buffer the marks so far; with `head`, the step ends here, in `phase`, and is sampled."""
        marks, self.marks = self.marks, []
        try:
            sample = self.probe.sample() if head is not None else None
        except OSError:
            sample = self.reopened_mark()
        self.buffer.append((head, marks, sample, phase, self.components))

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
        self._last_repetition = None
        self.repetition.observe(head[_INPUT_SIZE], readings[0], peaks)  # type: ignore[arg-type]
        return self._row(head, readings, components, peaks, max(peaks.values()))

    def _row_of_repetition(self, entry: Entry) -> Row:
        head, _, mark, _, components = entry
        assert head is not None
        repetition, input_size = self.repetition, head[_INPUT_SIZE]
        if mark is None:
            if repetition.is_repeating and input_size == repetition.input_size:
                return (*head, *self._tail), None
            # It began before the rows so far showed that steps differ: only its end is known.
            used = self._readings[0]
            return self._row(head, self._readings, components, {}, used)  # type: ignore[arg-type]
        last_peak, readings = self.probe.readings(mark)
        is_equal = (last_peak, readings, components) == self._last_repetition
        if is_equal and repetition.is_flat and input_size == repetition.input_size:
            return (*head, *self._tail), None
        # activations of the next row with these readings differ if the floor has moved here
        is_settled = self.floor == readings[0]
        self._last_repetition = (last_peak, readings, components) if is_settled else None
        peaks = repetition.peaks_at(input_size, readings[0], last_peak)  # type: ignore[arg-type]
        return self._row(head, readings, components, peaks, max(last_peak, *peaks.values(), 0))

    def _row(
        self,
        head: Head,
        readings: tuple[Value, ...],
        components: tuple[Value, ...],
        peaks: dict[str, int],
        peak: int,
    ) -> Row:
        self._readings = readings
        self.total_peak = max(self.total_peak, peak)
        # Activations are what forward and backward take above what was allocated when the step
        # before ended. What an optimizer allocates meanwhile (`foreach`) is its own.
        of_model = [value for name, value in peaks.items() if name != _OPTIMIZER]
        activations = max(0, max(of_model, default=peak) - self.floor) if peaks else None
        self.floor = readings[0]  # type: ignore[assignment]
        by_phase = tuple(map(peaks.get, PHASES)) if self._phases else _NO_PHASES
        if self._phases:
            total = self.phase_peaks
            total.update((name, size) for name, size in peaks.items() if size > total.get(name, -1))
        extra: dict[str, Value] | None = None
        if not peaks.keys() <= _PHASES:
            extra = {
                f"phase_{name}_peak_bytes": value
                for name, value in peaks.items()
                if name not in _PHASES
            }
        tail = (peak, *components, activations, self.probe.context_bytes, *by_phase)
        self._tail = (*readings, *tail)
        return (*head, *self._tail), extra

    def components_by_name(self) -> dict[str, Value]:
        names = ("parameters", "gradients", "optimizer_state", "buffers")
        return dict(zip(names, self.components, strict=True))

    def _add_peak(self, phase: str, peak: int) -> None:
        self._peaks[phase] = max(self._peaks.get(phase, 0), peak)
