"""The report of an out-of-memory error, for terminal, run page and Slack. Pure: data in, text out.

1. The cause, if a forecast stood: with the suspects of growth, the first one's fix with code, and
   what would have happened without the growth. Without a suspect, the result of the search or why
   there was none.
2. The request: its size, its phase, and the free memory.
3. Fragmentation: allocated against reserved memory, and if expandable segments would have helped.
4. Contents of the device: components, the largest live tensors, other processes.
5. History: the prediction, and the peaks of the last steps.
6. Changes: what the cause needs; then the estimator's advice, each with its saving and the need it
   leaves. A leak with a suspect gets its fix only: less memory a step would delay the crash.
   Without a known cause there is advice on the phase.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from memagent.diagnostics import with_display_path
from memagent.oom.cause import (
    EXPANDABLE,
    Change,
    EventData,
    OomCause,
    cause_of,
    changes_for,
    fits_without_fragmentation,
    location_text,
    needed_bytes,
)
from memagent.units import format_bytes

_PHASES = {
    "data": "while the batch was prepared: batches moved to the device early wait there",
    "forward": "in forward, where activations are created: batch size, sequence length, attention "
    "and checkpointing decide",
    "backward": "in backward, where gradients are created while activations still exist: the peak "
    "of most models",
    "optimizer": "in the optimizer's step: its state, created in the first step, and temporaries "
    "of foreach implementations decide",
    "eval": "in evaluation: without torch.inference_mode() it keeps activations, and collected "
    "results add up",
    "checkpoint": "while a checkpoint was saved: gathering or copying state needs room on the "
    "device",
}
_MIN_CACHE_SHARE = 0.1
"""Share of the reserved memory above which the allocator's cache is reported."""
KINDS_WITHOUT_TENSORS = ("host", "worker", "copy_on_write", "thread", "allocation")
"""Kinds of suspects whose growth is not that of live tensors."""
EXPLAINED_SHARE = 0.9
"""Share of the growth of all memory from which a suspect explains all of it."""
_MIN_PEAKS = 2
_STATES = {
    "requested": "was requested and begins at a later step",
    "counting": "is counting live tensors",
    "searching": "is searching for what holds the growth",
}
"""What a leak diagnosis under way does."""
_NATIVE_GROWTH = (
    " Most of the growth, {} a step, is neither in tensors nor in Python's objects: look for what "
    "a library written in C keeps, such as a database, a profiler or open figures."
)
_MAX_TENSORS = 10
_MAX_ITEMS = 3
"""Suspects, tensors and changes in a terminal's report."""
_NUMBER_ENDINGS = ("_bytes", "step", "line")
"""Endings of the names of fields that must be numbers."""


@dataclass(frozen=True)
class OomReport:
    """`findings` are sentences, `components` (name, bytes) with the largest first.

    `needed_bytes`: what the failed step needed at least.
    """

    title: str
    findings: tuple[str, ...]
    components: tuple[tuple[str, int], ...]
    tensors: tuple[EventData, ...]
    suspects: tuple[EventData, ...]
    changes: tuple[Change, ...]
    search: str | None = None
    """Without a suspect: the result of the search, or why there was none; None if unknown."""
    growth_bytes_per_step: int | None = None
    """Growth of all memory in use during the search."""
    looked_at_step: int | None = None
    """Step of the search: the suspects are described as they were then."""
    cause: OomCause | None = None
    needed_bytes: int | None = None
    limit_bytes: int | None = None
    failed_step: int | None = None

    def lines(self) -> list[str]:
        """Return the report for a terminal."""
        return [self.title, *(f"  {line}" for line in self.details())]

    def details(self) -> list[str]:
        """Return everything below the title, a line each, the most important of each kind."""
        lines = [f"cause: {self.cause.sentence}"] if self.cause else []
        lines += [f"suspect: {self._suspect_text(item)}" for item in self.suspects[:_MAX_ITEMS]]
        if self.search:
            lines.append(self.search[0].lower() + self.search[1:])
        lines += self._change_lines(self.changes[:1] if self.has_fix else ())
        if self.cause and self.cause.without_growth:
            lines.append(self.cause.without_growth)
        lines += self.findings
        if self.components:
            sizes = (
                f"{name.replace('_', ' ')} {format_bytes(size)}" for name, size in self.components
            )
            lines.append(f"held: {', '.join(sizes)}")
        lines += [f"large: {_tensor_text(tensor)}" for tensor in self.tensors[:_MAX_ITEMS]]
        return lines + self._change_lines(self.other_changes[:_MAX_ITEMS], with_code=False)

    @property
    def has_fix(self) -> bool:
        """Return True if the first change is for the cause or the suspect."""
        return bool(self.suspects or self.cause)

    @property
    def other_changes(self) -> tuple[Change, ...]:
        """Return the changes without the fix."""
        return self.changes[1:] if self.has_fix else self.changes

    def to_dict(self) -> dict[str, Any]:
        """Return what a report file has of it (docs/cli.md)."""
        return {
            "title": self.title,
            "cause": self.cause.name if self.cause else None,
            "without_growth": self.cause.without_growth if self.cause else None,
            "changes": [
                {"change": change, "saving_bytes": saving, "code": code}
                for change, saving, code in self.changes
            ],
            "details": self.details(),
        }

    def saving_text(self, saving: int) -> str:
        """Return what a change saves, and what the step would have needed with it."""
        text = f"saves {format_bytes(saving)}"
        if not self.needed_bytes or not self.limit_bytes or saving >= self.needed_bytes:
            return text
        rest = format_bytes(self.needed_bytes - saving)
        return f"{text}, leaving about {rest} of {format_bytes(self.limit_bytes)}"

    def _change_lines(self, changes: Sequence[Change], *, with_code: bool = True) -> list[str]:
        lines = []
        for change, saving, code in changes:
            saves = f" ({self.saving_text(saving)})" if saving else ""
            lines.append(f"change: {change}{saves}")
            lines += [f"    {line}" for line in code.splitlines() if with_code]
        return lines

    def _suspect_text(self, suspect: EventData) -> str:
        step = suspect.get("step") or self.looked_at_step
        holder = f"{suspect['holder']} at step {step:,}" if step else suspect["holder"]
        rate = rate_text(
            suspect.get("kind"), suspect.get("bytes_per_step"), self.growth_bytes_per_step
        )
        return f"{location_text(suspect)}: {holder}{rate}."


def oom_report(
    event_data: EventData,
    step: int,
    *,
    device: str | None = None,
    reading: EventData | None = None,
    predicted_peak_bytes: int | None = None,
    suspects: Sequence[EventData] = (),
    advice: Sequence[EventData] = (),
    roots: Sequence[str] = (),
) -> OomReport:
    """Build the report of a run that crashed in step `step` + 1.

    `event_data` is that of its `oom` event; anything may be missing or of a wrong type. `device`
    ran out of memory, by default the first; `reading` is its newest sample. `suspects` and `advice`
    are `Suspect`s and `AdviceItem`s as dicts, the best first. Suspects default to those of the
    event. Files are shown relative to `roots` (`memagent.diagnostics`).
    """
    event_data = _well_typed(event_data)
    suspects = suspects or [item for item in event_data.get("suspects", ()) if "holder" in item]
    suspects = [with_display_path(suspect, roots) for suspect in suspects]
    cause = cause_of(event_data.get("forecast", {}))
    search = _search_of(event_data)
    devices = event_data.get("devices", {})
    device_id = device if device in devices else next(iter(devices), None)
    device_state: EventData = devices.get(device_id, {})
    state = {**_well_typed(reading or {}), **device_state}
    components = _components_of(state)
    tensors = event_data.get("largest_tensors", ())[:_MAX_TENSORS]
    phase = str(event_data.get("phase") or "")
    size, free = event_data.get("asked_bytes"), event_data.get("free_bytes")
    findings = (
        _phase_finding(phase, cause),
        _request_finding(size, free, state),
        _fragmentation_finding(size, free, state),
        _other_processes_finding(state),
        _prediction_finding(state, predicted_peak_bytes),
        _peaks_finding(event_data.get("last_peaks", ())),
    )
    where = f" in {phase} of step {step + 1:,}" if phase else f" in step {step + 1:,}"
    name = device_state.get("name")
    return OomReport(
        title=f"Out of memory{where}" + (f" on {name}" if name else ""),
        findings=tuple(finding for finding in findings if finding),
        components=tuple(sorted(components.items(), key=lambda item: -item[1])),
        tensors=tuple(with_display_path(tensor, roots) for tensor in tensors),
        suspects=tuple(suspects),
        changes=changes_for(
            phase, size, free, state, cause, suspects, advice, on_host=device_id == "host"
        ),
        search=search_sentence(search) if search and not suspects else None,
        growth_bytes_per_step=search.get("growth_bytes_per_step"),
        looked_at_step=search.get("step"),
        cause=cause,
        needed_bytes=needed_bytes(size, state, predicted_peak_bytes),
        limit_bytes=state.get("limit_bytes"),
        failed_step=step + 1,
    )


def _phase_finding(phase: str, cause: OomCause | None) -> str | None:
    """Say where it happened, and what decides there unless a leak does."""
    if phase not in _PHASES:
        return None
    place = _PHASES[phase]
    return f"It happened {place.partition(':')[0] if cause and cause.is_leak else place}."


def search_sentence(search: EventData) -> str:
    """Describe a search without suspects, from `LeakMonitor.search`: its result, or why not."""
    state = _STATES.get(search.get("state") or "")
    if search.get("step") is None:
        if state is not None:
            return f"No suspect yet: a leak diagnosis {state}."
        return f"No leak diagnosis was run: {search.get('why_not') or 'the reason is unknown'}."
    steps = f"steps {search.get('first_step') or 0:,} to {search['step']:,}"
    cut = ", until its time was up" if search.get("is_cut_short") else ""
    again = f" Another one {state}." if state is not None else ""
    native = search.get("native_bytes_per_step")
    outside = _NATIVE_GROWTH.format(format_bytes(native)) if native else ""
    return f"No suspect was found: the leak diagnosis covered {steps}{cut}.{outside}{again}"


def rate_text(kind: str | None, rate: float | None, growth_bytes_per_step: int | None) -> str:
    """Return `, 1.3 MiB a step`; also the growth of all memory if that is larger."""
    if not rate:
        return ""
    text = f", {format_bytes(rate)} a step"
    if kind in KINDS_WITHOUT_TENSORS or not growth_bytes_per_step:
        return text
    if rate > EXPLAINED_SHARE * growth_bytes_per_step:
        return text
    return f"{text} in tensors alone (memory in use grew by {format_bytes(growth_bytes_per_step)})"


def _request_finding(size: int | None, free: int | None, state: EventData) -> str | None:
    used, limit = state.get("used_bytes"), state.get("limit_bytes")
    is_known = used is not None and limit
    fill = f"{format_bytes(used)} of {format_bytes(limit)} were used." if is_known else None
    if not size:
        return fill
    room = f" with {format_bytes(free)} free" if free is not None else ""
    return f"{format_bytes(size)} were requested{room}" + (f"; {fill}" if fill else ".")


def _fragmentation_finding(size: int | None, free: int | None, state: EventData) -> str | None:
    reserved, allocated = state.get("reserved_bytes"), state.get("allocated_bytes")
    if reserved is None or allocated is None or reserved - allocated < _MIN_CACHE_SHARE * reserved:
        return None
    text = (
        f"{format_bytes(reserved)} were reserved and {format_bytes(allocated)} allocated: "
        f"{format_bytes(reserved - allocated)} were cached"
    )
    if fits_without_fragmentation(size, free, state):
        return f"{text}, enough but fragmented. {EXPANDABLE} would probably have saved this step."
    return f"{text}, and merging the fragments would not have been enough."


def _other_processes_finding(state: EventData) -> str | None:
    others = state.get("other_processes_bytes")
    return f"Other processes held {format_bytes(others)} of the device." if others else None


def _prediction_finding(state: EventData, predicted: int | None) -> str | None:
    if not predicted:
        return None
    peak = state.get("peak_allocated_bytes")
    if not peak:
        return f"The predicted peak was {format_bytes(predicted)}."
    percent = 100 * (peak - predicted) / predicted
    direction = "above" if percent > 0 else "below"
    return (
        f"The newest peak was {format_bytes(peak)}, {abs(percent):.0f} % {direction} the "
        f"prediction of {format_bytes(predicted)}."
    )


def _peaks_finding(peaks: Sequence[Any]) -> str | None:
    """List the last peaks: slow growth looks different from a sudden peak."""
    steps_and_peaks = [
        peak
        for peak in peaks
        # types are compared, since isinstance takes a bool for an int
        if isinstance(peak, list | tuple) and list(map(type, peak)) == [int, int]
    ]
    if len(steps_and_peaks) < _MIN_PEAKS:
        return None
    sizes = [format_bytes(peak) for _, peak in steps_and_peaks]
    listed = sizes[0] if len(set(sizes)) == 1 else ", ".join(sizes)
    return f"Peaks of steps {steps_and_peaks[0][0]:,} to {steps_and_peaks[-1][0]:,}: {listed}."


def _tensor_text(tensor: EventData) -> str:
    shape = " x ".join(str(side) for side in tensor.get("shape") or ())
    location = f" ({location_text(tensor)})" if tensor.get("file") else ""
    size = format_bytes(tensor.get("size_bytes"))
    return f"{tensor.get('name')}: {shape} {tensor.get('dtype')}, {size}{location}"


def _well_typed(values: EventData) -> EventData:
    """Return free-form data without values of a wrong type, which nothing has validated so far."""
    typed = ((name, _typed_value(name, value)) for name, value in values.items())
    return {name: value for name, value in typed if value is not None}


def _typed_value(name: str, value: Any) -> Any:
    """Return a field's value in the type that a report reads; None if it has another."""
    if name.endswith(_NUMBER_ENDINGS):
        return value if _is_number(value) else None
    read = _READERS.get(name)
    return value if read is None else read(value)


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _list(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else ()


def _typed_items(value: Any) -> list[EventData]:
    return [_well_typed(item) for item in _list(value) if isinstance(item, Mapping)]


def _fields(value: Any) -> EventData:
    return _well_typed(value) if isinstance(value, Mapping) else {}


def _devices(value: Any) -> dict[str, EventData]:
    items = value.items() if isinstance(value, Mapping) else ()
    return {name: _well_typed(item) for name, item in items if isinstance(item, Mapping)}


def _components_of(state: EventData) -> dict[str, int]:
    """Return the bytes of components, and of everything else in use: what leaks is no component."""
    sizes = {name: size for name, size in state.get("components", {}).items() if size}
    used = state.get("allocated_bytes") or state.get("used_bytes") or 0
    rest = used - sum(sizes.values())
    return {**sizes, "everything_else": rest} if sizes and rest > 0 else sizes


def _components(value: Any) -> dict[str, float]:
    items = value.items() if isinstance(value, Mapping) else ()
    return {name: size for name, size in items if _is_number(size)}


_READERS: Mapping[str, Callable[[Any], Any]] = {
    "components": _components,
    "devices": _devices,
    "file": _text,
    "forecast": _fields,
    "cause": _text,
    "holder": _text,
    "kind": _text,
    "fix": _text,
    "largest_tensors": _typed_items,
    "last_peaks": _list,
    "shape": _list,
    "suspects": _typed_items,
}


def _is_number(value: Any) -> bool:
    return type(value) in (int, float)


def _search_of(event_data: EventData) -> EventData:
    search = event_data.get("suspect_search")
    if not isinstance(search, Mapping):
        return {}
    types: dict[str, type] = {"why_not": str, "is_cut_short": bool}
    return {name: value for name, value in search.items() if type(value) is types.get(name, int)}
