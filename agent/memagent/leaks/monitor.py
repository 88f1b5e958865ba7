"""Who holds the memory that grows: asked when growth is suspected, answered to the terminal, the report, the last words and the server.

1. The local forecaster suspects, or the server does (a command in its answer to a batch), or the script asks by `run.snapshot`; or memory
   creeps up where no forecast speaks of it, the limit being far.
2. `leaks.Finder` looks at step boundaries, within a budget. Who was named once is looked for again only when the run has gone on for
   twice as many steps: a leak does not move. Where nobody was, a forecast of growth may have one further look, whatever the budget says.
3. A diagnosis becomes a snapshot for the server. One without suspects is sent too: nobody found is an answer.
4. The CUDA allocator's own record goes with it as a page for torch's viewer. Where the script asked, it is saved beside the run's file
   as well.

Whether memory creeps up, however slowly and however far the limit: reason enough to look once who holds it.

1. Of each block of steps the least reading counts: what comes and goes within steps is not in it.
2. Growth is suspected when several blocks in a row lie above the one before, each by a least amount, and by like amounts: chance's rises
   are of all sizes.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from memagent.diagnostics.console import display_path, display_roots, notify_user
from memagent.diagnostics.error_guard import ErrorGuard
from memagent.leaks import Diagnosis, Finder, Suspect
from memagent.leaks.detectors import allocator_history
from memagent.leaks.detectors.base import StackAllocation, frame_text
from memagent.oom.report import rate_text
from memagent.record.git import find_repository
from memagent.record.identity import Identity
from memagent.sampling.sampler import Sampler
from memagent.units import format_bytes
from memagent.wire import messages

"""Causes of growth for which there is a line to blame."""
_MOST_TOLD = 3
_RETRY_AFTER_STEPS = 20
_LAST_PEAKS = 8
_PLACES = 50
_DEEPEST = 256
"""Frames of a stack: what the wire takes."""


class LeakMonitor:
    """One rank's. `deliver` takes a snapshot for the server, on the training thread. `stem`: path of the run's file without its suffix."""

    def __init__(
        self,
        identity: Identity,
        sampler: Sampler,
        guard: ErrorGuard,
        deliver: Callable[[messages.SnapshotMessage], None],
        stem: Path,
    ) -> None:
        self._identity, self._sampler, self._guard, self._deliver = (
            identity,
            sampler,
            guard,
            deliver,
        )
        self._stem, self._saves = stem, False
        self._device = sampler.tracks[0].probe.device
        self._finder = Finder(used_bytes=sampler.tracks[0].probe.used_bytes)
        self._why, self._seq, self._next_step = "", 0, 0
        self._traces_host = False
        self._may_retry = True
        self.last_peaks: deque[tuple[int, int | None]] = deque(maxlen=_LAST_PEAKS)
        """(step, peak_allocated_bytes) of the last samples of the device trained on, the newest last."""
        self.roots = display_roots(
            {"directory": os.getcwd(), "git_root": str(find_repository() or "")}
        )
        """What files are shown relative to."""
        self._why_not = "no growth was suspected"
        self._creep = SlowGrowthDetector(self._device.kind)

    @property
    def suspects(self) -> tuple[Suspect, ...]:
        """Of the newest diagnosis, the likeliest first."""
        return self._finder.suspects

    @property
    def search(self) -> dict[str, Any]:
        """Whether anybody looked, and if not, why: `{first_step, step}` of the newest diagnosis, or `{why_not}`. For
        `oom_report.search_sentence`."""
        found = self._finder.diagnosis
        if found is None:
            return {"why_not": self._why_not}
        facts = {
            "first_step": found.first_step,
            "step": found.step,
            "is_cut_short": found.is_cut_short,
        }
        return {**facts, "growth_bytes_per_step": found.growth_bytes_per_step}

    def suspect(
        self, why: str, *, host: bool = False, saves: bool = False, is_forecast: bool = False
    ) -> None:
        """Growth is suspected; on any thread. `host`: of memory outside of torch. `saves`: for torch's viewer, too. `is_forecast`: the run
        is expected to die of it."""
        is_retry = is_forecast and self._is_worth_a_retry()
        if not is_retry and (self._finder.is_busy or self._sampler.step < self._next_step):
            return
        self._may_retry &= not is_retry
        self._why, self._saves = why, saves
        host = host or self._traces_host
        self._finder.request(history=self._device.kind == "cuda", host=host, beyond_budget=is_retry)

    def _is_worth_a_retry(self) -> bool:
        """Whether the first look came to nothing, and a second one would see other steps."""
        found = self._finder.diagnosis
        if found is None or found.suspects or not self._may_retry or self._finder.is_looking:
            return False
        return self._sampler.step >= found.step + _RETRY_AFTER_STEPS

    def observe(self, stream: str, columns: Mapping[str, Sequence[Any]]) -> None:
        """Consecutive samples of one stream, on the collector's thread."""
        if stream != self._device.id:
            return
        self.last_peaks.extend(
            zip(columns.get("step", ()), columns.get("peak_allocated_bytes", ()), strict=False)
        )
        if self._creep.observe(columns.get("allocated_bytes", ())):
            self.suspect("it creeps up")

    def after_step(self) -> None:
        """On the training thread, at each step boundary."""
        if self._finder.is_busy:
            why_not, self._why_not = self._why_not, "looking for it failed"
            with self._guard.section("looking who holds the memory"):
                diagnosis = self._finder.after_step(self._sampler.step)
                self._why_not = why_not
                if diagnosis is not None:
                    self._conclude(diagnosis)

    def at_the_end(self) -> None:
        """The run dies: what is under way is judged by what has been seen."""
        if self._finder.is_busy:
            self._why_not = "looking for it failed"
            steps = self._finder.steps_seen
            diagnosis = self._finder.conclude()
            self._why_not = f"growth was suspected only {steps} step{'s' * (steps != 1)} before"
            if diagnosis is not None:
                self._conclude(diagnosis)

    def send(
        self,
        why: str,
        *,
        tensors: Sequence[dict[str, Any]] = (),
        notes: Sequence[str] = (),
        diagnosis: Diagnosis | None = None,
    ) -> None:
        """A snapshot of now; with the stacks of a diagnosis that has just been made."""
        self._deliver(
            messages.SnapshotMessage(
                rank=self._identity.rank,
                attempt=self._identity.attempt,
                seq=self._seq,
                device=self._device.id,
                step=self._sampler.step,
                time_s=time.time(),
                method=diagnosis.method if diagnosis else "census",
                why=why,
                suspects=list(self.suspects[:_PLACES]),
                stacks=[_stack(held) for held in diagnosis.grown] if diagnosis else [],
                tensors=list(tensors),
                notes=list(notes),
                viewer=self._page(diagnosis),
            )
        )
        self._seq += 1

    def close(self) -> None:
        self._finder.close()

    def _conclude(self, diagnosis: Diagnosis) -> None:
        self._next_step = 2 * diagnosis.step
        if not diagnosis.suspects and self._device.kind == "host" and not self._traces_host:
            self._traces_host, self._next_step = (
                True,
                0,
            )  # no tensor grows: look at what Python itself allocates
        for index, suspect in enumerate(diagnosis.suspects[:_MOST_TOLD]):
            notify_user(
                sentence(suspect, None if index else diagnosis.growth_bytes_per_step, self.roots)
            )
        began = time.perf_counter()
        self.send(
            self._why, notes=[_looked(diagnosis), *self._save(diagnosis.step)], diagnosis=diagnosis
        )
        self._finder.history = None  # a record is large
        self._finder.budget.spend(time.perf_counter() - began)

    def _page(self, diagnosis: Diagnosis | None) -> bytes:
        """Torch's own page of what the allocator recorded meanwhile."""
        history = self._finder.history
        if diagnosis is None or history is None or not history.last:
            return b""
        with self._guard.section("making the viewer's page"):
            return allocator_history.compressed_page(history.last, messages.VIEWER_BYTES)
        return b""

    def _save(self, step: int) -> list[str]:
        """Notes that say where the allocator's record lies, where there is one that was asked for."""
        history = self._finder.history
        if not self._saves or history is None or not history.last:
            return []
        self._saves = False
        with self._guard.section("saving the allocator's record"):
            paths = allocator_history.save_snapshot(
                history.last, self._stem.with_name(f"{self._stem.name}-{step}")
            )
            saved = f"the allocator's record, for torch's viewer: {' and '.join(map(str, paths))}"
            notify_user(saved)
            return [saved]
        return []


def _looked(diagnosis: Diagnosis) -> str:
    """What a reader should know of how it was looked."""
    growth = diagnosis.growth_bytes_per_step
    return (
        f"looked at steps {diagnosis.first_step:,} to {diagnosis.step:,}"
        + (f", in which memory in use grew by {format_bytes(growth)} a step" if growth else "")
        + f"; it cost {1000 * diagnosis.pause_s:.0f} ms"
        + ("; the time for it was up before all was looked at" if diagnosis.is_cut_short else "")
    )


def sentence(
    suspect: Suspect, growth_bytes_per_step: int | None = None, roots: Sequence[str] = ()
) -> str:
    """For a terminal: the line, what grows there, and what to do. `growth_bytes_per_step`: of all memory in use."""
    rate = rate_text(suspect.kind, suspect.bytes_per_step, growth_bytes_per_step)
    place = f"{display_path(suspect.file, roots)}:{suspect.line}"
    if suspect.function:
        place += f" in {suspect.function}"
    return f"suspect: {place}: {suspect.holder}{rate}. {suspect.fix}"


def _stack(held: StackAllocation) -> messages.Stack:
    """The innermost frames, where there are too many."""
    frames = [frame_text(frame) for frame in held.stack[-_DEEPEST:]]
    return messages.Stack(frames=frames, size_bytes=held.size_bytes, blocks=max(0, held.blocks))


BLOCK, IN_A_ROW = 16, 5
ALIKE = 4.0
LEAST_BYTES_PER_STEP = {"cuda": 32}
LEAST_ELSEWHERE_BYTES_PER_STEP = 16 * 2**10
"""A host's readings rise by themselves while allocators and caches warm up; an allocator's are exact."""


class SlowGrowthDetector:
    """One device's readings, step by step, in constant memory."""

    def __init__(self, kind: str) -> None:
        self._least = BLOCK * LEAST_BYTES_PER_STEP.get(kind, LEAST_ELSEWHERE_BYTES_PER_STEP)
        self._floor: int | None = None
        self._block_floor: int | None = None
        self._steps = 0
        self._rises: list[int] = []

    def observe(self, readings: Iterable[int | None]) -> bool:
        """Bytes in use at the ends of consecutive steps, None where unknown. True when growth is suspected, and then not again before it
        has gone on for as long."""
        seen = [self._add(reading) for reading in readings if reading is not None]
        return True in seen

    def _add(self, reading: int) -> bool:
        self._block_floor = (
            reading if self._block_floor is None else min(self._block_floor, reading)
        )
        self._steps += 1
        if self._steps < BLOCK:
            return False
        rise = self._block_floor - self._floor if self._floor is not None else 0
        self._rises = [*self._rises[1 - IN_A_ROW :], rise] if rise >= self._least else []
        self._floor, self._block_floor, self._steps = self._block_floor, None, 0
        if len(self._rises) < IN_A_ROW or max(self._rises) > ALIKE * min(self._rises):
            return False
        self._rises = []
        return True
