"""Leak monitor of one rank: requests a diagnosis when memory grows, and publishes the result.

1. A diagnosis is requested by the local forecaster, by the server (a command in its reply to a
   batch), by the script (`run.snapshot`), or by the monitor itself if memory grows in the first
   steps, or slowly while the limit is too far for a forecast.
2. `leaks.Finder` runs it at step boundaries, within a budget. After a diagnosis the next one waits
   until the run has twice as many steps: a leak doesn't move. If it measures growth that no suspect
   explains, the next method follows at once (`triggers`): on a host with Python's own
   allocations traced, then over a longer window. If it measures none, a forecast of growth decides.
   One that was cut short counts for nothing. Suspects whose tensors no longer become more are
   withdrawn at a later check.
3. A diagnosis is sent to the server as a snapshot, also without suspects: that's a result, too.
   Events say when it begins, searches, ends or is given up.
4. The CUDA allocator's record goes with it as a page for torch's viewer. If the script requested
   the diagnosis, the record is also saved next to the run's file.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from msgspec import structs

from memagent.diagnostics import ErrorGuard, display_roots
from memagent.forecast import Forecast
from memagent.forecast.types import LEAK_CAUSES, PAGING_LEVELS, Growing
from memagent.leaks import triggers
from memagent.leaks.diagnosis_report import (
    MIN_NOTICE_CONFIDENCE,
    SuspectNotices,
    diagnosis_text,
    search_report,
    state_text,
)
from memagent.leaks.snapshots import SnapshotWriter
from memagent.probe.detached import forks_wait
from memagent.probe.heap import heap_reader
from memagent.probe.host_limits import free_host_bytes
from memagent.record.git import find_repository
from memagent.sampling.sampler import Sampler
from memagent.wire.messages import BatchReply, Event, Suspect

if TYPE_CHECKING:
    from memagent.leaks.finder import Finder
    from memagent.leaks.free_memory import FreeMemory
    from memagent.leaks.suspect import Diagnosis

_RETRY_AFTER_STEPS = 20
METHODS_ADVANCE_S = 5.0
"""Processor time by which the methods of one run may be ahead of their share of it. Fitted to
scripts of the eighth to the eleventh exam, of 20 to 100 s: a trace takes 1 to 3.5 s there."""
_LAST_PEAKS = 8
_NO_MEMORY = "no memory was left for the diagnosis"


class LeakMonitor:
    """`emit` sends an event, as `snapshots` does the results, on the training thread.

    sends_source: results include the source around suspects.
    """

    def __init__(
        self,
        sampler: Sampler,
        guard: ErrorGuard,
        snapshots: SnapshotWriter,
        emit: Callable[[Event], None],
        *,
        sends_source: bool = True,
    ) -> None:
        self._sampler = sampler
        self._guard = guard
        self._snapshots = snapshots
        self._emit = emit
        self._sends_source = sends_source
        self._add_source: Callable[[Sequence[Suspect]], tuple[Suspect, ...]] = tuple
        self._emitted_state = "idle"
        self._growing: tuple[Growing, int | None] | None = None
        self.on_found: Callable[[Growing, int | None], None] = lambda _, __: None
        """Called when it's known what keeps the growing memory of the training device, and how many
        bytes a buffer takes until it's full."""
        self._device = sampler.tracks[0].probe.device
        self._started_at = time.monotonic()
        kind = self._device.kind
        used_bytes = sampler.tracks[0].probe.used_bytes
        self._heap = heap_reader()
        self._used_bytes = (self._heap if kind == "host" else None) or used_bytes
        self._used_bytes()  # if that takes long, it does before the first step
        self._early_growth = triggers.EarlyGrowth(kind)
        self._slow_growth = triggers.slow_growth_detectors(kind)
        self._methods = triggers.MethodSequence(kind)
        self._is_threatened = False
        """The newest forecast expects growth to end the run soon."""
        self._min_window = 0
        """Steps, if growth is rare."""
        self._checks = triggers.CheckSchedule()
        self._why = ""
        self._saves_record = False
        self._next_step = 0
        self._why_not = "no growth was suspected"
        self.last_peaks: deque[tuple[int, int | None]] = deque(maxlen=_LAST_PEAKS)
        """(step, peak_allocated_bytes) of the newest samples of the training device."""
        self.roots = display_roots(
            {"directory": os.getcwd(), "git_root": str(find_repository() or "")}
        )
        """Files are displayed relative to these."""
        self._notices = SuspectNotices(self.roots)

    @cached_property
    def _finder(self) -> Finder:
        """The finder, which most runs never need: only the first request imports it."""
        with forks_wait():
            from memagent.leaks.finder import Finder
            from memagent.leaks.source_excerpt import SourceExcerpts
            from memagent.leaks.suspect import without_source

        self._add_source = SourceExcerpts().add_to if self._sends_source else without_source
        host_bytes = self._heap or (lambda: None)
        return Finder(
            used_bytes=self._used_bytes,
            host_bytes=host_bytes,
            free_memory=self._free_memory,
            started_at=self._started_at,
        )

    def _free_memory(self) -> FreeMemory:
        """Return what is free on the training device, and on the host."""
        from memagent.leaks.free_memory import FreeMemory

        probe, host = self._sampler.tracks[0].probe, free_host_bytes()
        limit = probe.limit_bytes
        device = None if limit is None else limit - probe.used_bytes()
        if self._device.kind == "host":  # its limit may be a given one
            host = min((item for item in (host, device) if item is not None), default=None)
        return FreeMemory(device, host)

    @property
    def _has_finder(self) -> bool:
        return "_finder" in vars(self)

    @property
    def suspects(self) -> tuple[Suspect, ...]:
        """Return the suspects of the newest diagnosis, most likely first."""
        return self._add_source(self._finder.suspects) if self._has_finder else ()

    def take_suspects(self, is_shown: Callable[[Suspect], bool]) -> tuple[Suspect, ...]:
        """Return the suspects for a warning that is printed now, with the step they were seen at.

        The first isn't printed again by itself. is_shown: returns True for those that it may name.
        """
        diagnosis = self._finder.diagnosis if self._has_finder else None
        if diagnosis is None:
            return ()
        suspects = tuple(filter(is_shown, self.suspects))
        self._notices.note_printed(suspects)
        at_step = f" at step {diagnosis.step:,}"
        return tuple(structs.replace(item, holder=item.holder + at_step) for item in suspects)

    @property
    def search(self) -> dict[str, Any]:
        """Return the steps of the newest diagnosis, or `{why_not}` if there was none.

        While another one is under way, also return its `state`: requested, counting or searching.
        """
        if not self._has_finder:
            return {"why_not": self._why_not}
        return search_report(self._finder, self._why_not, self._sampler.step)

    def suspect(
        self,
        why: str,
        *,
        host: bool = False,
        saves: bool = False,
        is_growth: bool = True,
        window: int | None = None,
    ) -> None:
        """Request a diagnosis, from any thread.

        host: memory outside of torch grows. saves: save the record for torch's viewer. is_growth:
        memory grows, so that a diagnosis without suspects is followed by the next method.
        window: steps, for rare growth.
        """
        self._min_window = max(self._min_window, window or 0)
        is_retry = is_growth and self._is_worth_a_retry()
        if not is_retry and (self._finder.is_busy or self._sampler.step < self._next_step):
            return
        if saves:  # the script asks
            self._notices.print_urgently()
        self._why = why
        self._saves_record = saves
        self._request(is_next=is_retry, host=host)

    def _request(self, *, is_next: bool, host: bool = False) -> None:
        """Request a diagnosis. is_next: it follows one by another method, without a suspect."""
        method = self._methods.current
        self._finder.request(
            history=self._device.kind == "cuda",
            host=host or method.traces_host,
            beyond_budget=is_next and self._is_threatened,
            advance_s=METHODS_ADVANCE_S if is_next else 0.0,
            window=max(self._min_window, method.window or 0) or None,
            containers=self._device.kind == "host",
        )
        self._sampler.request_work()

    def note_forecast(self, forecast: Forecast) -> None:
        """Request a diagnosis of growth by which, as forecast, the run may run out of memory."""
        if forecast.cause in LEAK_CAUSES:
            why = f"forecast at step {forecast.step:,}: {forecast.cause}"
            self._is_threatened = forecast.level in PAGING_LEVELS
            self.suspect(why, host=forecast.cause == "host_memory")
            if self._is_threatened:
                self._finder.hurry()
                self._notices.print_urgently()

    def handle_reply(self, reply: BatchReply) -> None:
        """Run the server's commands in its reply to a batch."""
        for command in reply.commands:
            if command.kind == "snapshot":
                why = str(command.data.get("why", "the server requested it"))
                self.suspect(why)
                self._notices.print_urgently()

    def _is_worth_a_retry(self) -> bool:
        """Return True if no diagnosis found any, and another method would see new steps."""
        diagnosis = self._finder.diagnosis
        if diagnosis is None or diagnosis.suspects or self._methods.is_over:
            return False
        is_later = self._sampler.step >= diagnosis.step + _RETRY_AFTER_STEPS
        return is_later and not self._finder.is_running

    def observe(self, stream: str, columns: Mapping[str, Sequence[Any]]) -> None:
        """Take consecutive samples of one stream, on the collector's thread."""
        if stream != self._device.id:
            return
        peaks = columns.get("peak_allocated_bytes", ())
        self.last_peaks.extend(zip(columns.get("step", ()), peaks, strict=False))
        readings = columns.get("allocated_bytes", ())
        for detector, window in self._slow_growth:
            if detector.observe(readings) and not self.suspects:
                self.suspect("memory grows slowly", window=window)

    def after_step(self) -> None:
        """Advance the diagnosis, on the training thread, at each boundary that it requested."""
        if not self._early_growth.is_over(self._sampler.step):
            self._sampler.request_work()
            with self._guard.section("early growth"):
                self._look_for_early_growth()
        if not self._has_finder:
            return
        try:
            self._advance()
        finally:
            self._finder.resume_collection()
        if self._finder.is_busy or self._checks.is_active:
            self._sampler.request_work()

    def _advance(self) -> None:
        """Do the next slice of the diagnosis, or of a check of its suspects."""
        if self._finder.is_busy:
            why_not, self._why_not = self._why_not, "the diagnosis failed"
            with self._guard.section("leak diagnosis"):
                try:
                    diagnosis = self._finder.after_step(self._sampler.step)
                except MemoryError:
                    diagnosis, why_not = None, _NO_MEMORY
                self._why_not = why_not  # not reached if the diagnosis raises
                if diagnosis is not None:
                    self._publish(diagnosis)
            self._emit_state()
        elif self._checks.is_check_due(self._sampler.step):
            with self._guard.section("leak check"):
                self._check_suspects()
        elif self._checks.is_count_due(self._sampler.step):
            with self._guard.section("leak check"):
                if self._finder.note_counts(self._sampler.step):
                    self._checks.note_count(self._sampler.step)

    def _look_for_early_growth(self) -> None:
        """Request a diagnosis if memory rises from the beginning, as a short run has no later."""
        if self._has_finder and (self._finder.is_busy or self.suspects):
            return
        method = self._early_growth.after_step(self._sampler.step, self._used_bytes)
        if method is not None:
            self.suspect("memory grows from the beginning", window=method.window)

    def at_the_end(self) -> None:
        """Conclude the running diagnosis with the steps so far, since the process ends."""
        if self._has_finder and self._finder.is_busy:
            steps, why_not = self._finder.observed_steps, self._why_not
            self._why_not = "the diagnosis failed"
            try:
                diagnosis = self._finder.conclude()
            except MemoryError:
                # not an error of the agent: the report of the script's own goes on
                self._why_not = _NO_MEMORY
                return
            self._why_not = f"growth was suspected only {steps} step{'s' * (steps != 1)} before"
            if not steps and why_not == _NO_MEMORY:
                self._why_not = why_not  # of the diagnosis that another one was to follow
            if diagnosis is not None:
                self._publish(diagnosis)

    def conclude(self) -> None:
        """Finish what is under way, as the run ends without running out of memory."""
        if self._has_finder and self._finder.is_busy:
            self._why_not = "the run ended before it was over"
            diagnosis = self._finder.conclude_search()
            if diagnosis is not None:
                self._publish(diagnosis)
        if self.suspects and (stopped := self._finder.withdraw_full(self._sampler.step)):
            self._note_stopped(stopped)
        self._notices.print(MIN_NOTICE_CONFIDENCE)

    def close(self) -> None:
        if self._has_finder:
            self._finder.close()

    # -- results --------------------------------------------------------------------------------

    def _emit_state(self) -> None:
        """Emit an event when a diagnosis begins, goes on to its search, or ends."""
        self._tell_growing()
        state = self._finder.state
        if state != self._emitted_state:
            self._emitted_state = state
            text = state_text(self._finder, self._why_not, is_last=self._methods.is_over)
            data = {"state": state, "text": text}
            step = self._sampler.step
            self._emit(Event(kind="diagnosis", step=step, time_s=time.time(), data=data))

    def _tell_growing(self) -> None:
        rest_bytes = self._finder.rest_bytes(on_host=self._device.kind == "host")
        growing = self._finder.growing, rest_bytes
        if growing != self._growing:
            self._growing = growing
            self.on_found(*growing)

    def _publish(self, diagnosis: Diagnosis) -> None:
        # a leak doesn't move, so the next diagnosis may wait
        self._next_step = 2 * diagnosis.step
        if self._methods.go_on(diagnosis):
            self._next_step = 0  # the next request tries another method
        self._checks.begin(self._sampler.step, has_suspects=bool(diagnosis.suspects))
        self._notices.set(diagnosis)
        grows = triggers.is_growth(self._device.kind, diagnosis.growth_bytes_per_step)
        grows = grows and self._finder.growing != "buffer"
        if not self._next_step and grows:
            self._request(is_next=True)  # a short run has no time to wait for more growth
        started = time.perf_counter()
        notes = [diagnosis_text(diagnosis), *self._save_record(diagnosis.step)]
        self.send(self._why, notes=notes, diagnosis=diagnosis)
        self._finder.history = None  # a record is large
        # saving and sending stop training, too
        self._finder.budget.spend(time.perf_counter() - started)

    def _check_suspects(self) -> None:
        """Withdraw suspects whose growth has stopped, such as a cache that is full."""
        step = self._sampler.step
        stopped = self._finder.withdraw_stopped(step)
        if stopped is None:  # it goes on after the next step
            return
        is_soon = self._finder.may_have_stopped
        self._checks.note_check(step, is_soon=is_soon)
        if not stopped:
            if not is_soon:
                self._notices.confirm(step)
            return
        self._note_stopped(stopped)

    def _note_stopped(self, stopped: Sequence[Suspect]) -> None:
        """Publish that suspects are withdrawn, on the terminal and the run's page."""
        step = self._sampler.step
        self._tell_growing()
        if not self.suspects:
            self._checks.end()
        if self._finder.diagnosis is not None:
            self._notices.withdraw(stopped, self._finder.diagnosis)
        note = f"growth has stopped by step {step:,}: {len(stopped)} suspects are withdrawn"
        self.send(self._why, notes=[note], diagnosis=self._finder.diagnosis)

    def send(
        self,
        why: str,
        *,
        tensors: Sequence[dict[str, Any]] = (),
        notes: Sequence[str] = (),
        diagnosis: Diagnosis | None = None,
    ) -> None:
        """Send a snapshot of now, with the stacks of `diagnosis` if it has just been made."""
        record = self._record if diagnosis is not None else None
        self._snapshots.send(why, self.suspects, tensors, notes, diagnosis, record)

    @property
    def _record(self) -> dict[str, Any] | None:
        """Return the CUDA allocator's record of the newest diagnosis, None without one."""
        history = self._finder.history
        return history.last or None if history is not None else None

    def _save_record(self, step: int) -> list[str]:
        """Save the allocator's record if requested, and return a note with its paths."""
        if not self._saves_record or self._record is None:
            return []
        self._saves_record = False
        return self._snapshots.save(self._record, step)
