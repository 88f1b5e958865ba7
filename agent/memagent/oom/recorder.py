"""The `oom` event of a run, and the note that the user's exception gets."""

from __future__ import annotations

import mmap
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from msgspec import structs

from memagent.diagnostics import ErrorGuard, notify_user
from memagent.hooks.exit import describe_error, error_chain
from memagent.hooks.instrumentation import ModelInstrumentation
from memagent.hooks.oom_observer import AllocationFailure, add_failure_listener, parse_failure
from memagent.probe.host import device_name
from memagent.sampling.bus import EventSink
from memagent.sampling.sampler import Sampler
from memagent.sampling.track import Track
from memagent.units import format_bytes
from memagent.wire.messages import Device, Event, Suspect

if TYPE_CHECKING:
    from memagent.estimator.estimate import Estimate
    from memagent.oom.report import OomReport

_PHASE_ATTRIBUTE = "_memagent_phase"
"""Attribute of an error: the phase that it was raised in."""
_PHASES_OF_MODULES = {
    "torch.nn.modules.module": "forward",
    "torch.autograd.graph": "backward",
    "torch.optim.optimizer": "optimizer",
}
_BALLAST_BYTES = 16 * 2**20
"""Address space released at an out-of-memory, to make room for the report.

It is never written to, and so never resident.
"""
_LAST_BALLAST_BYTES = 4 * 2**20
"""The same for the last batch: the search for leaks may take all that the first gave back."""


class OomRecorder:
    """Listens for failed allocations while the run lives, and describes the one that ends it.

    `location` is where the run can be seen, for the note on the error. `get_forecast` returns the
    newest forecast for the training device unless it's calm, `get_prediction` the newest estimate.
    """

    def __init__(
        self,
        sampler: Sampler,
        instrumentation: ModelInstrumentation,
        events: EventSink,
        guard: ErrorGuard,
        location: str,
        *,
        get_forecast: Callable[[], dict[str, Any] | None],
        get_prediction: Callable[[], Estimate | None],
    ) -> None:
        self._sampler = sampler
        self._instrumentation = instrumentation
        self._events = events
        self._guard = guard
        self._location = location
        self._get_forecast = get_forecast
        self._get_prediction = get_prediction
        self.report: OomReport | None = None
        """The report of the error that ended the run."""
        self._failure: AllocationFailure | None = None
        self._failure_phase = ""
        self._ballast = mmap.mmap(-1, _BALLAST_BYTES)
        self._last_ballast = mmap.mmap(-1, _LAST_BALLAST_BYTES)
        self._remove_listener = add_failure_listener(sys.modules["torch"], self._note_failure)

    def note_phase(self, error: BaseException) -> None:
        """Remember in which phase `error` was raised: the first that it leaves.

        The error itself carries it, since it may be caught and another one follow.
        """
        if _PHASE_ATTRIBUTE not in error.__dict__:
            error.__dict__[_PHASE_ATTRIBUTE] = self._sampler.phase

    def after_step(self) -> None:
        """Emit `oom_survived` if an allocation failed in this step: the script has recovered."""
        if self._failure is None:
            return
        failure, self._failure = self._failure, None
        data = {
            "phase": self._failure_phase,
            "asked_bytes": failure.asked_bytes,
            "free_bytes": failure.free_bytes,
        }
        self._events.emit(self._event("oom_survived", data))

    def release_ballast(self) -> None:
        """Make room for the report, and for what comes before it. May be called again."""
        self._ballast.close()

    def build_event(
        self,
        error: BaseException,
        suspects: Sequence[Suspect],
        search: Mapping[str, Any],
        last_peaks: Sequence[tuple[int, int | None]],
    ) -> Event:
        """Build the `oom` event of the `error` that ends the process, and add a note to the error.

        `search` describes the search for `suspects`. `last_peaks` are (step, peak_allocated_bytes)
        of the last samples of the device that the model trains on.
        """
        self.release_ballast()  # everything below needs memory
        for track in self._sampler.tracks:
            with self._guard.section("probe refresh"):
                track.probe.refresh()  # the limit may have changed within the last second
        # the observer's numbers are exact; those of the message are rounded, but exist on hosts
        failure = self._failure or parse_failure(error)
        data: dict[str, Any] = {
            "error": describe_error(error),
            "phase": self._phase_of(error),
            "asked_bytes": failure.asked_bytes,
            "free_bytes": failure.free_bytes,
            "devices": {
                track.probe.device.id: _device_state(track) for track in self._sampler.tracks
            },
        }
        add_note = getattr(error, "add_note", None)  # Python 3.11
        if add_note is not None:
            add_note(error_note(data, self._sampler.step, self._location))
        with suppress(MemoryError):  # there may be no memory left to look around
            data["largest_tensors"] = self.largest_tensors(error)
        forecast = self._get_forecast()
        # a GPU that is full has another cause than the host's growth
        if forecast and (failure.device is None or forecast["cause"] != "host_memory"):
            data["forecast"] = forecast
        data["last_peaks"] = list(last_peaks)
        data["suspects"] = [suspect.to_dict() for suspect in suspects]
        data["suspect_search"] = dict(search)
        return self._event("oom", data)

    def print_report(self, event: Event, roots: Sequence[str]) -> None:
        """Print the report of an `oom` event, with files relative to `roots`.

        The server builds the same report from the event.
        """
        from memagent.oom.report import oom_report

        track = self._sampler.tracks[0]
        prediction = self._get_prediction()
        self.report = oom_report(
            event.data,
            event.step,
            device=track.probe.device.id,
            reading={"peak_allocated_bytes": track.total_peak},
            predicted_peak_bytes=prediction.predicted_peak_bytes if prediction else None,
            suspects=event.data["suspects"],
            advice=[structs.asdict(item) for item in prediction.advice] if prediction else (),
            roots=roots,
        )
        notify_user("\n".join(self.report.lines()))

    def largest_tensors(self, error: BaseException | None = None) -> list[dict[str, Any]]:
        """Return the largest live tensors by name, JSON-ready.

        With an `error`, tensors of the functions that it ended count too.
        """
        return [asdict(holder) for holder in self._instrumentation.largest_tensors(error)]

    def close(self) -> None:
        self._remove_listener()
        self._ballast.close()
        self._last_ballast.close()

    def _event(self, kind: str, data: dict[str, Any]) -> Event:
        return Event(kind=kind, step=self._sampler.step, time_s=time.time(), data=data)

    def _phase_of(self, error: BaseException) -> str:
        """Return the phase that the error or one of its causes was raised in.

        If no error carries it, return that of the failed allocation, else the current one.
        """
        for link in error_chain(error):
            if _PHASE_ATTRIBUTE in link.__dict__:
                return str(link.__dict__[_PHASE_ATTRIBUTE])
        if self._failure:
            return self._failure_phase
        phase = self._sampler.phase
        return _phase_by_frames(error, phase) if self._sampler.is_unread else phase

    def _note_failure(self, failure: AllocationFailure) -> None:
        # runs inside the failing allocation: take a note, and nothing that could fail
        self._failure = failure
        self._failure_phase = self._sampler.phase
        self._sampler.has_work = True


def _phase_by_frames(error: BaseException, phase: str) -> str:
    """Return the phase that an error was raised in, where hooks have told only `phase`."""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        phase = _PHASES_OF_MODULES.get(frame.f_globals.get("__name__", ""), phase)
        if phase == "backward":
            break  # forwards inside of it are recomputed
    return phase


def error_note(data: Mapping[str, Any], step: int, location: str) -> str:
    """Return a line for `BaseException.add_note`: phase, fill of the device, and the run's page."""
    size = data["asked_bytes"]
    device = next(iter(data["devices"].values()))
    used, limit = format_bytes(device["used_bytes"]), format_bytes(device["limit_bytes"])
    return (
        f"memagent: out of memory in {data['phase']} of step {step + 1:,}"
        + (f", allocating {format_bytes(size)}" if size else "")
        + f" with {used} of {limit} used; the run: {location}"
    )


def _device_state(track: Track) -> dict[str, Any]:
    device = track.probe.device
    name = device.name
    if device.kind == "host":
        name = device_name(track.probe.limit_bytes, device.total_bytes or 0)
    components = track.components_by_name()
    return {
        "name": name,
        "used_bytes": track.probe.used_bytes(),
        "limit_bytes": track.probe.limit_bytes,
        **_allocator_state(device),
        "components": {name: value for name, value in components.items() if value is not None},
    }


def _allocator_state(device: Device) -> dict[str, int]:
    """Return what the caching allocator has allocated and reserved, on a CUDA device."""
    if device.kind != "cuda":
        return {}
    # the slow public call will do, once per crash
    stats = sys.modules["torch"].cuda.memory_stats(device.index)
    names = ("allocated_bytes", "reserved_bytes", "inactive_split_bytes")
    return {name: stats[f"{name}.all.current"] for name in names if f"{name}.all.current" in stats}
