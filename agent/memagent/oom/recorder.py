"""What a run says of its own out-of-memory: the event that leaves the process, and the note that the user's exception gets."""

from __future__ import annotations

import mmap
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from msgspec import structs

from memagent.diagnostics.console import notify_user
from memagent.diagnostics.error_guard import ErrorGuard
from memagent.estimator.estimate import Estimate
from memagent.hooks.exit import chain_of, describe_error
from memagent.hooks.instrumentation import ModelInstrumentation
from memagent.hooks.oom_observer import AllocationFailure, failure_in, watch_failures
from memagent.leaks import Suspect
from memagent.oom.report import oom_report
from memagent.probe.host import device_name
from memagent.sampling.sampler import Sampler, Track
from memagent.units import format_bytes
from memagent.wire.messages import Device, Event

_LEFT = "_memagent_phase"
_COMPONENTS = ("parameters", "gradients", "optimizer_state", "buffers")


_BALLAST_BYTES = 16 * 2**20
"""Address space given back when the process runs out of memory, so that the last words find room. Never touched, so never resident."""


class OomRecorder:
    """Listens for failed allocations as long as the run lives, and has something to say when one of them is the end."""

    def __init__(
        self, sampler: Sampler, watch: ModelInstrumentation, guard: ErrorGuard, place: str
    ) -> None:
        self._sampler, self._watch, self._guard, self._place = sampler, watch, guard, place
        self.last_peaks: list[tuple[int, int | None]] = []
        """(step, peak_allocated_bytes) of the last samples of the device trained on, as far as they are known."""
        self._failure: AllocationFailure | None = None
        self._phase = ""
        self._ballast = mmap.mmap(-1, _BALLAST_BYTES)
        self._unwatch = watch_failures(sys.modules["torch"], self._note_failure)

    def note_phase(self, error: BaseException) -> None:
        """An error is on its way out: the phase that it left first is where it happened. The error itself remembers it, since it may
        be caught and another one follow."""
        if _LEFT not in error.__dict__:
            error.__dict__[_LEFT] = self._sampler.phase

    def take_survived(self) -> Event | None:
        """A step ended. If an allocation had failed within it, the script has found a way around it."""
        failure, self._failure = self._failure, None
        phase, self._phase = self._phase, ""
        if failure is None:
            return None
        data = {
            "phase": phase,
            "asked_bytes": failure.asked_bytes,
            "free_bytes": failure.free_bytes,
        }
        return Event(kind="oom_survived", step=self._sampler.step, time_s=time.time(), data=data)

    def say(
        self, error: BaseException, suspects: Sequence[Suspect], search: Mapping[str, Any]
    ) -> Event:
        """The `oom` event of the `error` that ends the process, with who is blamed and what came of the search for them; the error gets a
        note that says where the run can be seen."""
        self._ballast.close()
        for track in self._sampler.tracks:
            with self._guard.section("probe refresh"):
                track.probe.refresh()  # the limit may be younger than a second
        words = _words(
            error, self._failure or failure_in(error), self._sampler, self._phase_of(error)
        )
        add_note = getattr(error, "add_note", None)  # Python 3.11
        if add_note is not None:
            add_note(note(words, self._sampler.step, self._place))
        with suppress(MemoryError):  # there may be no room to look around
            words["largest_tensors"] = self.largest_tensors(error)
        words["last_peaks"] = self.last_peaks
        words["suspects"] = [suspect.to_dict() for suspect in suspects]
        words["suspect_search"] = dict(search)
        return Event(kind="oom", step=self._sampler.step, time_s=time.time(), data=words)

    def report(self, words: Event, prediction: Estimate | None, roots: Sequence[str]) -> None:
        """What killed the run, to the terminal, with files relative to `roots`; the server makes the same of the event."""
        track = self._sampler.tracks[0]
        found = oom_report(
            words.data,
            words.step,
            device=track.probe.device.id,
            reading={"peak_allocated_bytes": track.total_peak},
            predicted_peak_bytes=prediction.peak_allocated_bytes if prediction else None,
            suspects=words.data["suspects"],
            advice=[structs.asdict(item) for item in prediction.advice] if prediction else (),
            roots=roots,
        )
        notify_user("\n".join(found.lines()))

    def largest_tensors(self, error: BaseException | None = None) -> list[dict[str, Any]]:
        """The largest live tensors and what a person calls them, JSON-ready; also in the functions that the `error` has ended."""
        return [asdict(holder) for holder in self._watch.largest_tensors(error)]

    def close(self) -> None:
        self._unwatch()
        self._ballast.close()

    def _phase_of(self, error: BaseException) -> str:
        """The phase that the error, or what it was raised from, has left; else that of the failed allocation; else the present one."""
        left = next(
            (link.__dict__[_LEFT] for link in chain_of(error) if _LEFT in link.__dict__), None
        )
        return left or self._phase or self._sampler.phase

    def _note_failure(self, failure: AllocationFailure) -> None:
        self._failure, self._phase = failure, self._sampler.phase


def _words(
    error: BaseException, failure: AllocationFailure, sampler: Sampler, phase: str
) -> dict[str, Any]:
    """What was asked for, in which phase, and what each device held by component. Sizes in bytes."""
    return {
        "error": describe_error(error),
        "phase": phase,
        "asked_bytes": failure.asked_bytes,
        "free_bytes": failure.free_bytes,
        "devices": {track.probe.device.id: _device(track) for track in sampler.tracks},
    }


def note(words: dict[str, Any], step: int, place: str) -> str:
    """One line for `BaseException.add_note`: where in the step it happened, how full the device was, and where the report is."""
    asked = words["asked_bytes"]
    device = next(iter(words["devices"].values()))
    return (
        f"memagent: out of memory in {words['phase']} of step {step + 1:,}"
        + (f", asking for {format_bytes(asked)}" if asked else "")
        + f" with {format_bytes(device['used_bytes'])} of {format_bytes(device['limit_bytes'])} used; the run: {place}"
    )


def _allocator(device: Device) -> dict[str, int]:
    """What the caching allocator held and had obtained, where there is one."""
    if device.kind != "cuda":
        return {}
    stats = sys.modules["torch"].cuda.memory_stats(device.index)
    names = ("allocated_bytes", "reserved_bytes", "inactive_split_bytes")
    return {name: stats[f"{name}.all.current"] for name in names if f"{name}.all.current" in stats}


def _device(track: Track) -> dict[str, Any]:
    device = track.probe.device
    components = zip(_COMPONENTS, track.components, strict=True)
    return {
        "name": device_name(track.probe.limit_bytes, device.total_bytes or 0)
        if device.kind == "host"
        else device.name,
        "used_bytes": track.probe.used_bytes(),
        "limit_bytes": track.probe.limit_bytes,
        **_allocator(device),
        "components": {name: value for name, value in components if value is not None},
    }
