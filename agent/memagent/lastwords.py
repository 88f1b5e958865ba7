"""What a run says of its own out-of-memory: the event that leaves the process, and the note that the user's exception gets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from memagent.hooks.exit import describe_error
from memagent.hooks.oom import AllocationFailure, failure_in
from memagent.leaks.holders import Holder
from memagent.sampler import Sampler, Track
from memagent.units import format_bytes

_COMPONENTS = ("parameters", "gradients", "optimizer_state", "buffers")


def last_words(error: BaseException, failure: AllocationFailure | None, sampler: Sampler, phase: str) -> dict[str, Any]:
    """The data of the `oom` event: what was asked for, in which phase, and what each device held by component. Sizes in bytes."""
    told = failure or failure_in(error)
    return {
        "error": describe_error(error),
        "phase": phase,
        "asked_bytes": told.asked_bytes,
        "free_bytes": told.free_bytes,
        "devices": {track.probe.device.id: _device(track) for track in sampler.tracks},
    }


def holders_data(holders: Sequence[Holder]) -> list[dict[str, Any]]:
    return [asdict(holder) | {"shape": list(holder.shape)} for holder in holders]


def note(words: dict[str, Any], step: int, place: str) -> str:
    """One line for `BaseException.add_note`: where in the step it happened, how full the device was, and where the report is."""
    asked = words["asked_bytes"]
    device = next(iter(words["devices"].values()))
    return (
        f"memagent: out of memory in {words['phase']} of step {step + 1:,}"
        + (f", asking for {format_bytes(asked)}" if asked else "")
        + f" with {format_bytes(device['used_bytes'])} of {format_bytes(device['limit_bytes'])} used; the run: {place}"
    )


def _device(track: Track) -> dict[str, Any]:
    device = track.probe.device
    components = zip(_COMPONENTS, track.components, strict=True)
    return {
        "name": device.name,
        "used_bytes": track.probe.used_bytes(),
        "limit_bytes": track.probe.limit_bytes,
        "components": {name: value for name, value in components if value is not None},
    }
