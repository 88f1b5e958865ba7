"""Why a run ran out of memory, and what to change. Pure: data in, text out.

1. The cause is that of the newest forecast, which the agent puts into the `oom` event if it isn't
   calm.
2. For a leak the report also says what would have happened without it: the memory in use at the
   forecast, less the growth since it began.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from memagent.estimator.advice.by_cause import (
    CauseAdvice,
    advice_for_cause,
    code_for_suspect,
    helping_first,
)
from memagent.forecast.types import CAUSES, LEAK_CAUSES
from memagent.units import format_bytes

EventData = Mapping[str, Any]
Change = tuple[str, int | None, str]
"""Sentence, bytes saved or None, code."""

_PHASE_ADVICE = {
    "forward": "Use a smaller batch with accumulation, recompute activations by checkpointing, or "
    "train in bf16.",
    "backward": "Use a smaller batch with accumulation, or recompute activations by checkpointing.",
    "optimizer": "Use an 8-bit or fused optimizer (`fused=True`, or `foreach=False`), or shard its "
    "state over ranks (ZeRO, FSDP).",
    "eval": "Evaluate under `torch.inference_mode()` with a smaller batch, and move results to the "
    "CPU as they arrive.",
    "data": "Move a batch to the device when it is needed, and prefetch fewer.",
    "checkpoint": "Save from the CPU: "
    "`{name: value.cpu() for name, value in model.state_dict().items()}`.",
}
_PHASES_OF_ACTIVATIONS = ("forward", "backward")
EXPANDABLE = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"


@dataclass(frozen=True)
class OomCause:
    """`sentence` is for people; so is `without_growth`, which only a leak has."""

    name: str
    sentence: str
    without_growth: str | None
    advice: CauseAdvice

    @property
    def is_leak(self) -> bool:
        return self.name in LEAK_CAUSES


def cause_of(forecast: EventData) -> OomCause | None:
    """Return the cause by a forecast as an event has it; None if it has none."""
    name = forecast.get("cause")
    if name not in CAUSES:
        return None
    advice = advice_for_cause(name)
    first, rate = forecast.get("first_step"), forecast.get("growth_bytes_per_step")
    begin, grown = forecast.get("growing_since_step"), forecast.get("grown_bytes")
    since = f", forecast since step {first:,}" if first is not None else ""
    title, without_growth = f"{str(name).replace('_', ' ')}{since}.", None
    if not rate or begin is None or not grown:
        return OomCause(str(name), f"{title} {advice.summary}", None, advice)
    growth = (
        f"Memory grew by {format_bytes(grown)} since step {begin:,}, in the end by "
        f"{format_bytes(rate)} a step."
    )
    if name in LEAK_CAUSES:
        without_growth = _without_growth(forecast, grown)
    else:
        growth = f"{advice.summary} {growth}"
    return OomCause(str(name), f"{title} {growth}", without_growth, advice)


def _without_growth(forecast: EventData, grown: int) -> str | None:
    used, limit = forecast.get("used_bytes"), forecast.get("limit_bytes")
    if not used or not limit or not 0 < grown < used:
        return None
    rest, whole = format_bytes(used - grown), format_bytes(limit)
    return f"Without this growth, about {rest} of {whole} would have been in use."


def location_text(suspect: EventData) -> str:
    """Return `train.py:42`, as far as it is known."""
    line = suspect.get("line")
    return f"{suspect.get('file') or 'unknown file'}" + (f":{line}" if line else "")


def fits_without_fragmentation(size: int | None, free: int | None, state: EventData) -> bool:
    """Return True if the allocator's cache and the free memory together would have sufficed."""
    reserved, allocated = state.get("reserved_bytes"), state.get("allocated_bytes")
    if not size or reserved is None or allocated is None:
        return False
    return bool((free or 0) < size <= (free or 0) + reserved - allocated)


def needed_bytes(size: int | None, state: EventData, predicted: int | None) -> int | None:
    """Return what the failed step needed at least: what was in use, and the failed request."""
    used, reserved, allocated = map(state.get, ("used_bytes", "reserved_bytes", "allocated_bytes"))
    if used is None:
        return predicted
    cached = reserved - allocated if reserved is not None and allocated is not None else 0
    return max(int(used - cached + (size or 0)), predicted or 0)


def changes_for(
    phase: str,
    size: int | None,
    free: int | None,
    state: EventData,
    cause: OomCause | None,
    suspects: Sequence[EventData],
    advice: Sequence[EventData],
    *,
    on_host: bool = False,
) -> tuple[Change, ...]:
    """Return what to change, the most important first."""
    changes: list[Change] = []
    is_leak = cause is not None and cause.is_leak
    if cause is not None and not (is_leak and suspects):
        changes.append((cause.advice.change, None, cause.advice.code))
    if suspects:
        first = suspects[0]
        fix = f"Fix the leak first, at {location_text(first)}. {first.get('fix') or ''}".rstrip()
        changes.append((fix, None, code_for_suspect(first, on_host=on_host)))
    if is_leak:
        # without a suspect, inputs that grow are possible: on a host, freed memory may stay in use
        if not suspects and phase in _PHASES_OF_ACTIVATIONS:
            changes.append((_PHASE_ADVICE[phase], None, ""))
        return tuple(changes)
    if fits_without_fragmentation(size, free, state):
        changes.append(("Let the allocator merge its fragments.", None, f"export {EXPANDABLE}"))
    for item in helping_first(cause.name, advice) if cause else advice:
        changes.append((item["change"], item.get("saving_bytes"), item.get("code") or ""))
    if phase in _PHASE_ADVICE and cause is None:
        changes.append((_PHASE_ADVICE[phase], None, ""))
    return tuple(changes)
