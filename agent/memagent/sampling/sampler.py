"""From moments to rows: the hooks say what happens in the loop, probes are read, rows go to the buffers.

1. A step is cut into phases by the moments at which the hooks call `enter`. The device's peak since the last moment belongs to the
   phase that ends there.
2. At the end of an optimizer step a row is written for each device, every `every` steps; peaks cover the steps skipped between.
3. A phase that the user opened holds until the user closes it, whatever the hooks see inside.
4. Where a model trains on a GPU, the host is read at the end of steps only: its phases tell nothing that is worth a system call.
5. The training thread only takes raw readings and appends them to lists; `Track.digest` makes rows of them on the collector's thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

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
MOST_MOMENTS = 1_000
"""Moments kept of one step before they are handed over without a row: an evaluation of hours has millions of them."""

_DATA, _FORWARD, _BACKWARD, _OPTIMIZER = PHASES
_NO_PHASES = (None,) * len(PHASES)

Moments = list[tuple[str, RawReading]]
"""Phase that ended, and the reading at its end."""
Entry = tuple[Row, dict[str, Value] | None]


class Track:
    """One device: the moments of the current step, on the training thread; what they add up to, on the collector's."""

    def __init__(self, probe: Probe, drops: DroppedSamples, phases: bool) -> None:
        self.probe = probe
        self.buffer = TrackBuffer(
            probe.device.id, (*HEAD_COLUMNS, *probe.columns, *TAIL_COLUMNS), drops, self.digest
        )
        self.components: tuple[Value, ...] = (None, None, None, None)
        self.moments: Moments = []
        self._phases = phases
        self._peaks: dict[str, int] = {}
        _, readings = probe.readings(probe.sample())
        self.floor: int = readings[0]  # type: ignore[assignment]
        self.total_peak = self.floor

    def hand_over(self, head: tuple[Value, ...] | None, phase: str) -> None:
        """Leave the moments so far for `digest`; with `head`, the step ends here, in `phase`, and is sampled."""
        moments, self.moments = self.moments, []
        sample = self.probe.sample() if head is not None else None
        left: Any = (head, moments, sample, phase, self.components)
        self.buffer.append(left)

    def digest(self, left: Any) -> Entry | None:
        """The row of what `hand_over` left, with the peaks of phases that have no column; None where no step ended."""
        head, moments, sample, phase, components = left
        peaks = self._peaks
        for ending, mark in moments:
            self._note(ending, self.probe.peak(mark))
        if head is None:
            return None
        last, readings = self.probe.readings(sample)
        self._note(phase, last)
        peak = max(peaks.values())
        self.total_peak = max(self.total_peak, peak)
        activations, self.floor = max(0, peak - self.floor), readings[0]  # type: ignore[assignment]
        by_phase = tuple(peaks.pop(name, None) for name in PHASES) if self._phases else _NO_PHASES
        extra: dict[str, Value] = {
            f"phase_{name}_peak_bytes": value for name, value in peaks.items() if name not in PHASES
        }
        peaks.clear()
        return (
            *head,
            *readings,
            peak,
            *components,
            activations,
            self.probe.context_bytes,
            *by_phase,
        ), extra or None

    def _note(self, phase: str, peak: int) -> None:
        self._peaks[phase] = max(self._peaks.get(phase, 0), peak)


class TrackBuffer(SampleBuffer):
    """Holds what `Track.hand_over` leaves, and makes rows of it when it is drained."""

    def __init__(
        self,
        stream: str,
        columns: Sequence[str],
        drops: DroppedSamples,
        digest: Callable[[Any], Entry | None],
    ) -> None:
        super().__init__(stream, columns, drops)
        self._digest = digest

    def drain(self) -> list[Entry]:
        return [entry for left, _ in super().drain() if (entry := self._digest(left)) is not None]


class Sampler:
    """Rows for `probes`; `step` counts optimizer steps that ended. Without `phases` only the peak of the whole step is kept."""

    def __init__(
        self, probes: Sequence[Probe], drops: DroppedSamples, every: int = 1, *, phases: bool = True
    ) -> None:
        self.tracks = [Track(probe, drops, phases) for probe in probes]
        self.step = 0
        self.samples = 0
        self.input_size = 0
        self.phase = _DATA
        self._every = every
        self._held: str | None = None
        self._marked = [
            track for track in self.tracks if track.probe.device.kind != "host"
        ] or self.tracks
        self._ended_at = time.perf_counter()
        self._sampled_step = 0

    def enter(self, phase: str) -> None:
        """A hook saw the loop go from one phase to another."""
        if self._held is None:
            self._cut(phase)

    def hold(self, phase: str | None) -> str | None:
        """The user opens a phase, or closes it (None, or the one around it); returns the one that was open."""
        before, self._held = self._held, phase
        self._cut(phase or _DATA)
        return before

    def end_step(self) -> bool:
        """An optimizer step ended; returns whether it was sampled."""
        self.step += 1
        if self.step % self._every:
            self._cut(self._held or _DATA)
            return False
        self._write_rows()
        return True

    def sample_start(self) -> None:
        """The sample of step 0, so that even a run that dies in its first step has left one."""
        self._write_rows()

    def set_components(
        self, components: Sequence[Components], *, with_gradients: bool = True
    ) -> None:
        """Bytes by component, one entry for each track, from now on."""
        for track, found in zip(self.tracks, components, strict=True):
            track.components = (
                found.parameters_bytes,
                found.gradients_bytes if with_gradients else None,
                found.optimizer_state_bytes,
                found.buffers_bytes,
            )

    def _cut(self, phase: str) -> None:
        ending, self.phase = self.phase, phase
        for track in self._marked:
            track.moments.append((ending, track.probe.mark()))
            if len(track.moments) >= MOST_MOMENTS:
                track.hand_over(None, ending)

    def _write_rows(self) -> None:
        now = time.perf_counter()
        step = self.step
        steps = step - self._sampled_step
        head = (
            step,
            time.time(),
            (now - self._ended_at) / steps if steps else None,
            self.input_size or None,
        )
        ending, self.phase = self.phase, self._held or _DATA
        for track in self.tracks:
            track.hand_over(head, ending)
        self.samples += 1
        self.input_size = 0
        self._ended_at, self._sampled_step = now, step
