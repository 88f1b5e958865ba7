"""Leak finder: runs a diagnosis on request, at step boundaries of the training thread.

1. *Counting* spans a window of steps (`window`).
2. *Searching* for what holds the growth is cut into slices. At each step boundary it works until
   the slice is over, and goes on at the next one, over as many steps as it needs.
3. Only processor time of the training thread counts. A busy host makes a diagnosis later, but not
   shorter: the time that the thread waits for a core is no work.
4. If the first suspect may stop growing, a longer window *confirms* it (`confirmation`).
5. The next diagnosis may begin only when all of them together are within their share of the run's
   time, or within an allowance that short runs have, too. A search waits if it is far ahead. If the
   caller allows an advance, the next one draws on it, as long as the one before predicts that it
   suffices.
"""

from __future__ import annotations

import math
from dataclasses import replace

from memagent.leaks import MIN_STEPS, WINDOW_STEPS, confirmation, cyclic_garbage
from memagent.leaks.confirmation import COUNTED_KINDS, HOST_KINDS, GrowthCheck, HostGrowthCheck
from memagent.leaks.detectors.allocator_history import AllocatorHistoryDetector
from memagent.leaks.detectors.base import Work
from memagent.leaks.diagnosis import MAX_SEARCH_CPU_S
from memagent.leaks.finder_checks import FinderChecks
from memagent.leaks.free_memory import BoundCheck
from memagent.leaks.limited_growth import SourceEvidence, source_evidence
from memagent.leaks.native_suspects import without_tensors
from memagent.leaks.suspect import Diagnosis, scale_confidence, with_opaque_holders
from memagent.leaks.window import ReadingWindow, WindowRequest
from memagent.wire.messages import Suspect

MAX_ADVANCE_S = 1.0
"""How far a search may be ahead of the share of all diagnoses, beyond that for its readings."""
MAX_END_S = 1.0
"""Processor time of each search that a run waits for when it ends well."""
_CUT_OFF_CONFIDENCE = 0.45
"""Confidence factor for suspects that the end of a run leaves unsure."""


class Finder(FinderChecks):
    """Finds what holds growing memory.

    Call `request` from any thread, and `after_step` on the training thread at the end of each step.
    """

    def request(
        self,
        *,
        history: bool = False,
        host: bool = False,
        beyond_budget: bool = False,
        advance_s: float = 0.0,
        window: int | None = None,
        containers: bool = False,
    ) -> None:
        """Start a diagnosis as soon as the budget allows, or at once if `beyond_budget`.

        advance_s: how far all diagnoses together may be ahead of the budget at its end, if it takes
        as long as the one before it.
        history: also record the CUDA allocator. host: also trace Python's own allocations, which
        makes small steps take two to five times as long. window: steps, if not the usual ones; use
        more for what grows rarely. containers: also look for those of the host that grow.
        Replaces an earlier request that hasn't started; a running diagnosis isn't disturbed.
        """
        self._advance_s = math.inf if beyond_budget else advance_s
        self._requested = WindowRequest(window or self.window, history, host, containers)

    def after_step(self, step: int) -> Diagnosis | None:
        """Advance the diagnosis after `step`. Return it in the step that completes it."""
        is_traced = self._window.is_active and self._window.request.host
        took_s = self._step_times.end(step, self.thread_clock(), is_traced=is_traced)
        try:
            return self._advance(step, took_s)
        finally:
            self._step_times.begin(step, self.thread_clock())

    def _advance(self, step: int, took_s: float | None) -> Diagnosis | None:
        """Do the next slice of the diagnosis. took_s: processor time of the step."""
        window = self._window
        if self._search is not None:
            return self._continue_search() if self._may_go_on() else None
        if not window.is_active:
            if self._requested is not None and self._may_begin(self._requested):
                self._begin(self._requested, step)
            return None
        window.end_step(step, took_s)
        if window.is_before_last:
            return self._begin_search()
        if window.is_due:
            with self._timed():
                window.read()
        if window.is_due_next:
            with self._timed():
                window.prepare()
        return None

    def conclude(self) -> Diagnosis | None:
        """End the running diagnosis now, as the run ends. Return None if it saw too few steps."""
        self.max_slice_s = math.inf  # training won't go on, so it doesn't wait
        if self._search is not None:
            return self._continue_search()
        if self._unconfirmed is not None:
            return self._conclude_unconfirmed(self._unconfirmed)
        if self.observed_steps < MIN_STEPS:
            self.close()
            return None
        return self._end_window()

    def _end_window(self) -> Diagnosis | None:
        """Search with the steps so far."""
        self.max_slice_s = math.inf
        if not self._window.is_before_last:
            with self._timed():
                self._window.read_before_last()
        self._window.last_step += 1
        return self._begin_search()

    def conclude_search(self) -> Diagnosis | None:
        """End the running diagnosis now, as the run ends well. Return None if it has no result.

        A window that has hardly begun is given up. Suspects of a window that is cut off are unsure.
        A suspect to be confirmed is unsure, too, unless its tensors became more up to the middle of
        the longer window. The variables of a function may be gone. If there are no new suspects,
        earlier ones stay.
        """
        unconfirmed, earlier, window = self._unconfirmed, self.diagnosis, self._window
        still_grows = unconfirmed is not None and self._check.goes_on(window.middle_census)
        is_cut_off = self._search is None and self._is_window_short
        if is_cut_off and (unconfirmed is not None or self.observed_steps < WINDOW_STEPS):
            has_stopped = window.middle_census is not None and not still_grows
            self.close()
            known = None if has_stopped else unconfirmed
            known = known and (known if still_grows else _unsure(known))
            self.diagnosis = known or earlier
            return known
        self.max_slice_s = math.inf
        self._max_search_s = MAX_END_S
        self._time_budget.allow(MAX_END_S)
        diagnosis = self._continue_search() if self._search is not None else self._end_window()
        steps = self.confirming_window
        if diagnosis and (
            is_cut_off or confirmation.is_unsure(diagnosis.suspects, self._window, steps)
        ):
            diagnosis = _unsure(diagnosis)
        if not diagnosis and (still_grows or earlier):
            diagnosis = unconfirmed if still_grows else None
        self.diagnosis = diagnosis or earlier
        return diagnosis

    @staticmethod
    def resume_collection() -> None:
        """Let the garbage collector go on, wherever a signal handler has interrupted a slice."""
        cyclic_garbage.resume()

    def hurry(self) -> None:
        """Let the diagnosis that is requested or running go beyond the budget."""
        self._advance_s = math.inf

    def _may_begin(self, request: WindowRequest) -> bool:
        """Return True if the budget allows it, and for a trace if the time of steps is known."""
        if request.host and self.waits and not self._step_times.is_known:
            return False
        expected_s = 0.0 if self.diagnosis is None else self.diagnosis.pause_s + self._extra_s
        return self.budget.allows(self._elapsed_s(), max(0.0, self._advance_s - expected_s))

    def _may_go_on(self) -> bool:
        """Return True if the search isn't too far ahead: by a second and twice its readings."""
        advance_s = max(self._advance_s, MAX_ADVANCE_S + 2 * self._readings_s)
        return self.budget.allows(self._elapsed_s(), advance_s)

    def _conclude_unconfirmed(self, diagnosis: Diagnosis) -> Diagnosis:
        """Return the first result: the variables of the script may be gone by now."""
        self.diagnosis = diagnosis
        is_late, step = self.observed_steps >= WINDOW_STEPS, self._window.last_step
        self.close()
        if is_late and self._check and self._check.has_stopped(step):
            self._withdraw(diagnosis, COUNTED_KINDS)
        return self.diagnosis

    def _begin(self, request: WindowRequest, step: int) -> None:
        self._requested = None
        waits = self.waits
        bounds = BoundCheck(self.free_memory)
        schedule = self._schedule(request.steps)
        detectors = request.detectors(self.used_bytes, bounds, schedule)
        self._window = window = ReadingWindow(request, detectors, step + waits, bounds)
        kind = AllocatorHistoryDetector
        records = (item for item in window.detectors if isinstance(item, kind))
        self.history = next(records, self.history)
        self._time_budget = self._new_time_budget()
        with self._timed():
            if waits:
                window.prepare()
            else:  # the caller waits for the result
                window.read()

    def _begin_search(self) -> Diagnosis | None:
        self._search = self._search_of_all(self._window.last_step)
        return self._continue_search()

    def _search_of_all(self, step: int) -> Work[SourceEvidence]:
        suspects: list[Suspect] = []
        # The more objects a process has, the longer take readings, and each pass of a search.
        self._readings_s = self._time_budget.used_s()
        # Tracing detectors end first: they slow down the others, and would record them.
        # All take their readings at this boundary.
        rest: list[Work[list[Suspect]]] = []
        try:
            for detector in reversed(self._window.detectors):
                self._allow_search()
                work = detector.search(step, self._time_budget)
                try:
                    next(work)
                    rest.append(work)
                except StopIteration as end:
                    suspects += end.value
                if any(item.kind == "thread" for item in suspects):
                    break  # what threads keep would take the other searches long
            if rest:
                yield
            for work in rest:
                self._allow_search()
                suspects += yield from work
        finally:
            for work in rest:
                work.close()
        detectors = self._window.detectors
        of_tensors = max(detector.host_tensors_bytes_per_step for detector in detectors)
        suspects = without_tensors(suspects, of_tensors)
        growths = (detector.growth_bytes_per_step for detector in detectors)
        suspects = with_opaque_holders(suspects, next(filter(None, growths), 0))
        suspects = self._window.bounds.without_filling(suspects)
        counts = [count for detector in detectors for count in detector.counts]
        suspects = self._lasting(suspects, counts)
        suspects.sort(key=lambda item: -(item.bytes_per_step or 0) * item.confidence)
        is_beyond = self._window.bounds.is_beyond
        return (yield from source_evidence(suspects, is_beyond, self._time_budget))

    def _allow_search(self) -> None:
        self._time_budget.allow(min(MAX_SEARCH_CPU_S + self._readings_s, self._max_search_s))

    def _continue_search(self) -> Diagnosis | None:
        """Search for one slice. Return the diagnosis if that was the last one."""
        search = self._search
        if search is None:
            return None
        with self._timed():
            try:
                next(search)
                return None
            except StopIteration as end:
                evidence = end.value
        return self._end(evidence)

    def _end(self, evidence: SourceEvidence) -> Diagnosis | None:
        window, unconfirmed = self._window, self._unconfirmed
        detectors, suspects = window.detectors, evidence.suspects
        diagnosis = window.diagnosis(suspects, self._time_budget)
        self._is_filling = window.is_filling
        may_confirm = unconfirmed is None and self._requested is None and self.waits
        with self._timed():
            is_unsure = may_confirm and confirmation.is_unsure(
                suspects, window, self.confirming_window
            )
            if suspects:
                self._growth = evidence.growing
            self._keyed = evidence.keyed
            self.close()
        counts = [count for detector in detectors for count in detector.counts]
        self._check = GrowthCheck(counts, is_keyed=self._are_keyed(suspects, COUNTED_KINDS))
        if is_unsure:  # begin again with new detectors of the same kinds
            self._begin(window.request.over(self.confirming_window), window.last_step)
            self._unconfirmed = diagnosis
            return None
        if unconfirmed is not None and diagnosis.is_cut_short and not suspects:
            diagnosis = unconfirmed
        elif not suspects and self._check:  # their tensors still grow
            diagnosis = replace(diagnosis, suspects=self.suspects)
        self.diagnosis, used_bytes = diagnosis, self.host_bytes()
        if suspects:
            self._native_rate = 0
        elif diagnosis.native_bytes_per_step:  # only some methods measure it
            self._native_rate = diagnosis.native_bytes_per_step
            self._native_since = diagnosis.step, used_bytes
        self._host_check = HostGrowthCheck(
            diagnosis.suspects,
            diagnosis.step,
            used_bytes,
            diagnosis.growth_bytes_per_step
            if self._are_keyed(diagnosis.suspects, HOST_KINDS)
            else None,
            burst_steps=(diagnosis.step - diagnosis.first_step) // 2,
        )
        return diagnosis


def _unsure(diagnosis: Diagnosis) -> Diagnosis:
    """Return the diagnosis with suspects that count as unsure."""
    suspects = (scale_confidence(item, _CUT_OFF_CONFIDENCE) for item in diagnosis.suspects)
    return replace(diagnosis, suspects=tuple(suspects))
