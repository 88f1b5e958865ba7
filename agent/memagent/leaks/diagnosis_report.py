"""What is told of a diagnosis: on the terminal, in events, notes and `run.report()`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from memagent.diagnostics import display_path, notify_user
from memagent.units import format_bytes
from memagent.wire.messages import Suspect

if TYPE_CHECKING:
    from memagent.leaks.finder import Finder
    from memagent.leaks.suspect import Diagnosis

_MAX_PRINTED_SUSPECTS = 3
MIN_NOTICE_BYTES = 2**27
"""What suspects keep when they are printed. Tables that filled up in clean scripts of the eighth
and ninth exams had up to 63 MiB."""
MIN_NOTICE_CONFIDENCE = 0.5
"""Confidence from which a suspect is printed when the run ends well."""
_BUSY_TEXTS = {
    "requested": "A leak diagnosis waits for its share of processor time.",
    "counting": "Looking for what grows: {0}.",
    "searching": "Looking for what holds the growth of {0}.",
}


def state_text(finder: Finder, why_not: str, *, is_last: bool) -> str:
    """Return what the finder does now, or what became of its newest diagnosis.

    why_not: reason for which it was given up, if it was. is_last: no method is left to try.
    """
    steps = f"steps {finder.first_step:,} to {finder.end_step:,}"
    if finder.is_busy:
        return _BUSY_TEXTS[finder.state].format(steps)
    if finder.diagnosis is None or finder.diagnosis.first_step != finder.first_step:
        return f"The leak diagnosis of {steps} was given up: {why_not}."
    if finder.suspects:
        return f"Suspects were found in {steps}."
    if is_last:
        return f"No suspect was found in {steps}, and no method is left to try."
    return f"No suspect was found in {steps}. If memory still grows, another method follows."


def diagnosis_text(diagnosis: Diagnosis) -> str:
    """Return one sentence on how the diagnosis was made."""
    steps = f"steps {diagnosis.first_step:,} to {diagnosis.step:,}"
    pause = f"paused training for {1000 * diagnosis.pause_s:.0f} ms"
    cut = " and was cut short by its time limit" if diagnosis.is_cut_short else ""
    if growth := diagnosis.growth_bytes_per_step:
        grew = f"In {steps}, memory in use grew by {format_bytes(growth)} a step"
        return f"{grew}; the diagnosis {pause}{cut}."
    return f"The diagnosis of {steps} {pause}{cut}."


def suspect_text(
    suspect: Suspect, growth_bytes_per_step: int | None = None, roots: Sequence[str] = ()
) -> str:
    """Return one line for a terminal: where, what grows there, and what to do.

    growth_bytes_per_step: growth of all memory in use.
    """
    from memagent.oom.report import rate_text

    rate = rate_text(suspect.kind, suspect.bytes_per_step, growth_bytes_per_step)
    where = f"{display_path(suspect.file, roots)}:{suspect.line}"
    if suspect.function:
        where += f" in {suspect.function}"
    return f"suspect: {where}: {suspect.holder}{rate}. {suspect.fix}"


class SuspectNotices:
    """Prints suspects on the terminal, and their withdrawal.

    A table that fills up for half of a run looks like a leak until then. So suspects are printed
    when a check has confirmed them and they keep `MIN_NOTICE_BYTES`, at a warning, which has the
    first itself, or at the end.
    A line that later diagnoses find again isn't printed again.
    roots: files are displayed relative to these.
    """

    def __init__(self, roots: Sequence[str]) -> None:
        self._roots = roots
        self._pending: Diagnosis | None = None
        self._printed: set[tuple[str, int]] = set()
        self._is_urgent = False

    def set(self, diagnosis: Diagnosis) -> None:
        """Note the suspects of a new diagnosis."""
        self._pending = diagnosis if diagnosis.suspects else None
        if self._is_urgent:
            self.print()

    def print_urgently(self) -> None:
        """Print the suspects that are known, and those of the next diagnosis at once."""
        self._is_urgent = True
        self.print()

    def note_printed(self, suspects: Sequence[Suspect]) -> None:
        """Note suspects that a warning prints."""
        self._printed.update((item.file, item.line) for item in suspects[:1])

    def confirm(self, step: int) -> None:
        """Print suspects that a check after `step` has confirmed, if they keep much."""
        suspects = self._pending.suspects if self._pending else ()
        if sum(item.bytes_per_step or 0 for item in suspects) * step >= MIN_NOTICE_BYTES:
            self.print()

    def print(self, min_confidence: float = 0.0) -> None:
        """Print the first suspects of at least this confidence."""
        pending, self._pending = self._pending, None  # other threads print, too
        if pending is None:
            return
        self._is_urgent = False
        for index, suspect in enumerate(pending.suspects[:_MAX_PRINTED_SUSPECTS]):
            place = (suspect.file, suspect.line)
            if suspect.confidence >= min_confidence and place not in self._printed:
                growth = None if index else pending.growth_bytes_per_step
                notify_user(suspect_text(suspect, growth, self._roots))
                self._printed.add(place)

    def withdraw(self, stopped: Sequence[Suspect], rest: Diagnosis) -> None:
        """Print that suspects which were printed are withdrawn."""
        self._pending = rest if self._pending is not None and rest.suspects else None
        for suspect in stopped[:_MAX_PRINTED_SUSPECTS]:
            place = (suspect.file, suspect.line)
            if place in self._printed:
                self._printed.remove(place)
                where = f"{display_path(suspect.file, self._roots)}:{suspect.line}"
                notify_user(f"no longer a suspect: {where}: {suspect.holder} has stopped growing")


def search_report(finder: Finder, why_not: str, step: int) -> dict[str, Any]:
    """Return the steps of the newest diagnosis, or `{why_not}`, and the state of one under way.

    step: the run's newest.
    """
    state = {"state": finder.state} if finder.is_busy else {}
    diagnosis = finder.diagnosis
    if diagnosis is None:
        return {"why_not": why_not, **state}
    return {
        **state,
        "first_step": diagnosis.first_step,
        "step": diagnosis.step,
        "is_cut_short": diagnosis.is_cut_short,
        "growth_bytes_per_step": diagnosis.growth_bytes_per_step,
        "native_bytes_per_step": finder.native_rate(step),
    }
