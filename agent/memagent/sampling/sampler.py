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
6. Without a GPU, short steps that repeat each other are read once, at their end, or not at all
   (`repetition`). Anything but the usual phases and input size has the rest of the step read in
   full; in a step that isn't read, nobody looks at the input.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter, thread_time, time

from memagent.components import Components
from memagent.delivery.buffer import DroppedSamples
from memagent.probe import Probe
from memagent.sampling.repetition import FULL_EVERY, MAX_FULL_AGE_S, MAX_STEP_S, READ_EVERY_S
from memagent.sampling.track import Track
from memagent.wire.fields import PHASES

MAX_MARKS = 1_000
"""Marks of one step in memory before they are flushed: a long evaluation makes millions of them."""

_DATA = PHASES[0]
_FORWARD = "forward"
_PHASES = frozenset(PHASES)


class Sampler:
    """Rows for `probes`; `step` counts optimizer steps that ended.

    Without `phases` only the peak of the whole step is recorded.
    """

    # In one object: with cold caches, each one more that a step touches takes up to a microsecond.
    __slots__ = (
        "_drops",
        "_every",
        "_full_at",
        "_marked_tracks",
        "_may_repeat",
        "_read_at",
        "_sampled_at",
        "_sampled_step",
        "_timed_at",
        "_timed_step",
        "_user_phase",
        "has_work",
        "input_size",
        "is_repetition",
        "is_unread",
        "phase",
        "repeated_input_size",
        "samples",
        "step",
        "tracks",
    )

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
        """This step is read at its end at most, so far. Hooks then change `phase` themselves."""
        self.is_unread = False
        """It isn't even read at its end, so far. Hooks may leave out its phases."""
        self.repeated_input_size: int | None = None
        self._read_at = 0.0
        self._full_at = 0.0
        self._timed_at = 0.0
        self._timed_step = 0
        self._sampled_at = perf_counter()
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
        if self.is_repetition:
            self.end_repetition()
            return True
        self.step += 1
        if self.step % self._every:
            self._mark(self._user_phase or _DATA)
            return False
        self._write_rows()
        return True

    def end_repetition(self) -> bool:
        """End a step that `is_repetition`. Return whether a part of the run has work.

        torch.compile must skip this function: see `StepDispatcher`. It calls no Python functions.
        """
        self.step = step = self.step + 1
        track = self.tracks[0]
        repetition = track.repetition
        mark = None
        now = perf_counter()
        input_size = self.input_size or (self.repeated_input_size if self.is_unread else None)
        if not self.is_unread or not repetition.is_flat:
            self._read_at = now + READ_EVERY_S
            try:
                mark = track.probe.mark()
            except OSError:
                mark = track.reopened_mark()
        head = (step, time(), now - self._sampled_at, input_size)
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
            step % FULL_EVERY > 0 and now < self._full_at and repetition.is_repeating
        )
        self.is_unread = self.is_repetition and repetition.is_flat and now < self._read_at
        self.repeated_input_size = repetition.input_size
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
        self.is_unread = False
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
        now = perf_counter()
        steps = self.step - self._sampled_step
        step_s = (now - self._sampled_at) / steps if steps else None
        head = (self.step, time(), step_s, self.input_size or None)
        ended_phase, self.phase = self.phase, self._user_phase or _DATA
        for track in self.tracks:
            track.flush(head, ended_phase)
        self.samples += 1
        self.input_size = 0
        self._sampled_at = now
        self._sampled_step = self.step
        repetition = self.tracks[0].repetition
        if self._may_repeat and repetition.is_repeating and self._user_phase is None:
            self._time_steps(now)
            self.is_repetition = self.step % FULL_EVERY > 0 and now < self._full_at
            self.is_unread = self.is_repetition and repetition.is_flat
            self._read_at = now + READ_EVERY_S
        self.repeated_input_size = repetition.input_size

    def _time_steps(self, now: float) -> None:
        """Set the time of the next full reading: now, unless steps since the last call were short.

        That is by the thread's clock.
        """
        clock = thread_time()
        seconds, self._timed_at = clock - self._timed_at, clock
        steps, self._timed_step = self.step - self._timed_step, self.step
        # less than nothing: steps are made on another thread now
        is_short = 0 <= seconds < MAX_STEP_S * steps
        self._full_at = now + MAX_FULL_AGE_S if is_short else now
