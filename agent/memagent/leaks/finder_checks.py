"""Checks between diagnoses: whether what the suspects keep still grows."""

from __future__ import annotations

from collections.abc import Sequence

from memagent.leaks import confirmation, limits
from memagent.leaks.census import GroupCount
from memagent.leaks.confirmation import COUNTED_KINDS, HOST_KINDS
from memagent.leaks.finder_state import FinderState
from memagent.leaks.suspect import Diagnosis
from memagent.wire.messages import Suspect


class FinderChecks(FinderState):
    """Withdraws suspects that no longer grow."""

    def withdraw_stopped(self, step: int) -> tuple[Suspect, ...] | None:
        """Withdraw suspects if their tensors, or host memory, no longer become more; return them.

        The first call may begin a census, and return None: call again after the next step. It
        decides about all suspects of tensors, and about all of host memory. Others stay.
        """
        if self.diagnosis is None or self.is_busy:
            return ()
        if self._check and self._check.prepare():
            return None
        with self._timed():
            has_stopped, thread_s = self._check.end(step)
            host_stopped = self._host_check and self._host_check.has_stopped(
                step, self.host_bytes()
            )
        self.budget.spend(thread_s)
        kinds = COUNTED_KINDS if has_stopped else frozenset()
        expected = self._check.expected(step)
        stopped = self._withdraw(self.diagnosis, kinds | HOST_KINDS if host_stopped else kinds)
        places = ((item.file, item.line) for item in stopped if item.kind in COUNTED_KINDS)
        self._expected.update(dict.fromkeys(places, expected))
        return stopped

    def note_counts(self, step: int) -> bool:
        """Note how many tensors there are, if the budget allows, for `withdraw_full`.

        Return False if that takes another step.
        """
        if self.is_busy or not self._check or not self.budget.allows(self._elapsed_s()):
            return True
        if self._check.prepare():
            return False
        with self._timed():
            thread_s = self._check.note(step)
        self.budget.spend(thread_s)
        return True

    def withdraw_full(self, step: int) -> tuple[Suspect, ...]:
        """Withdraw suspects that have stopped growing by the end of the run; return them."""
        diagnosis = self.diagnosis
        if diagnosis is None or not diagnosis.suspects:
            return ()
        window_steps = diagnosis.step - diagnosis.first_step
        has_limit = limits.may_stop_growing(diagnosis.suspects[0])
        is_full = self._check.is_full(step, window_steps, has_limit=has_limit)
        kinds = COUNTED_KINDS if is_full else frozenset()
        host = self._host_check
        if host and host.is_full(step, self.host_bytes(), window_steps):
            kinds |= HOST_KINDS
        return self._withdraw(diagnosis, kinds)

    @property
    def may_have_stopped(self) -> bool:
        """Return True if the last check saw hardly any growth of suspects of host memory."""
        return bool(self._host_check) and self._host_check.may_have_stopped

    def _withdraw(self, diagnosis: Diagnosis, kinds: frozenset[str]) -> tuple[Suspect, ...]:
        rest, stopped = confirmation.without(diagnosis, kinds)
        if stopped:
            self.diagnosis = rest
        for item in stopped:
            if (item.file, item.line) in self._keyed:
                self._slowed[item.file, item.line] = item.bytes_per_step or 0
        return stopped

    def _are_keyed(self, suspects: Sequence[Suspect], kinds: frozenset[str]) -> bool:
        """Return True if all suspects of these kinds are filled by key."""
        places = {(item.file, item.line) for item in suspects if item.kind in kinds}
        return bool(places) and places <= self._keyed

    def _lasting(self, suspects: Sequence[Suspect], counts: Sequence[GroupCount]) -> list[Suspect]:
        """Return suspects without those that were withdrawn before and don't grow beyond that.

        counts: of the groups of tensors that grow now.
        """
        return [
            item
            for item in suspects
            if not self._has_slowed(item) and not self._returns(item, counts)
        ]

    def _returns(self, suspect: Suspect, counts: Sequence[GroupCount]) -> bool:
        """Return True for one of tensors that was withdrawn, if there are no more than expected.

        Only groups of tensors that grew then are compared: what else grows now says nothing of it.
        """
        expected = self._expected.get((suspect.file, suspect.line), {})
        if suspect.kind not in COUNTED_KINDS:
            return False
        same = [item for item in counts if item.group in expected]
        return bool(same) and all(item.count <= expected[item.group] for item in same)

    def _has_slowed(self, suspect: Suspect) -> bool:
        """Return True for a table that was withdrawn, unless it grows as fast as before."""
        earlier = self._slowed.get((suspect.file, suspect.line))
        return earlier is not None and (suspect.bytes_per_step or 0) < earlier
