"""What killed a run, in plain words: the one report behind the terminal, the run page and Slack. Pure: facts in, sentences out.

1. What was asked for, in which phase, and what was free.
2. Allocated against reserved: whether the memory was there, but in pieces, and whether expandable segments would have joined them.
3. What the device held: components, the largest live tensors, other processes.
4. What had been predicted, the peaks of the last steps, and who is blamed for growth; else that nobody was found, or why nobody looked.
5. What to change: what grows, where a line is suspected; then the estimator's advice with its saving for this run; then what helps in
   that phase.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from memagent.diagnostics.console import with_display_path
from memagent.units import format_bytes

Facts = Mapping[str, Any]

_PHASES = {
    "data": "while the batch was made: what is moved to the device early waits there for its turn",
    "forward": "in forward, where activations are made: batch, sequence length, attention and checkpointing decide",
    "backward": "in backward, where gradients come while activations are still there: the peak of most models",
    "optimizer": "in the optimizer's step: its state, made in the first step, and the temporaries of foreach implementations decide",
    "eval": "in evaluation: without torch.inference_mode() it keeps activations, and results that are collected add up",
    "checkpoint": "while a checkpoint was written: gathering or copying state takes room on the device",
}
_PHASE_ADVICE = {
    "forward": "Use a smaller batch with accumulation, recompute activations by checkpointing, or train in bf16.",
    "backward": "Use a smaller batch with accumulation, or recompute activations by checkpointing.",
    "optimizer": "Use an 8-bit or fused optimizer (`fused=True`, or `foreach=False`), or shard its state over ranks (ZeRO, FSDP).",
    "eval": "Evaluate under `torch.inference_mode()` with a smaller batch, and move results to the CPU as they come.",
    "data": "Move a batch to the device when it is needed, and prefetch fewer.",
    "checkpoint": "Save from the CPU: `{name: value.cpu() for name, value in model.state_dict().items()}`.",
}
_STOP_GROWTH = "Stop what grows first, at the line that is suspected: less memory a step only puts the end off."
_MUCH_CACHE = 0.1
"""Of what is reserved: from there on the allocator's cache is worth a sentence."""
_NO_TENSORS = ("host", "worker", "copy_on_write", "allocation")
"""Kinds of suspects whose bytes a step are not those of live tensors."""
_MUCH_MORE = 1.1
_LEAST_PEAKS = 2
_MOST_TENSORS = 10
_MOST_ADVICE = 3
EXPANDABLE = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"


@dataclass(frozen=True)
class OomReport:
    """`title` in one line; `findings` are sentences; `components` (name, bytes), the largest first; `tensors` as in the last words;
    `changes` (sentence, bytes saved or None, code)."""

    title: str
    findings: tuple[str, ...]
    components: tuple[tuple[str, int], ...]
    tensors: tuple[Facts, ...]
    suspects: tuple[Facts, ...]
    changes: tuple[tuple[str, int | None, str], ...]
    search: str | None = None
    """Where there is no suspect: that none was found, or why nobody looked. None where even that is unknown."""
    growth_bytes_per_step: int | None = None
    """Of all memory in use, while the suspects were looked for."""
    looked_at_step: int | None = None
    """When the suspects were as they are described."""

    def lines(self) -> list[str]:
        """For a terminal."""
        return [self.title, *(f"  {line}" for line in self.details())]

    def details(self) -> list[str]:
        """All below the title, a line each, the most important of each kind."""
        lines = list(self.findings)
        if self.components:
            held = (
                f"{name.replace('_', ' ')} {format_bytes(size)}" for name, size in self.components
            )
            lines.append(f"held: {', '.join(held)}")
        for suspect in self.suspects[:_MOST_ADVICE]:
            lines.append(
                f"suspect: {_suspect(suspect, self.growth_bytes_per_step, self.looked_at_step)}"
            )
        if self.search:
            lines.append(self.search[0].lower() + self.search[1:])
        for tensor in self.tensors[:_MOST_ADVICE]:
            lines.append(f"large: {_tensor(tensor)}")
        for change, saving, _ in self.changes[:_MOST_ADVICE]:
            lines.append(
                f"change: {change}" + (f" (saves {format_bytes(saving)})" if saving else "")
            )
        return lines


def oom_report(
    words: Facts,
    step: int,
    *,
    device: str | None = None,
    reading: Facts | None = None,
    predicted_peak_bytes: int | None = None,
    suspects: Sequence[Facts] = (),
    advice: Sequence[Facts] = (),
    roots: Sequence[str] = (),
) -> OomReport:
    """The report of a run that died in step `step` + 1.

    words: the data of its `oom` event. device: whose memory ran out, by default the first. reading: the newest sample of that device.
    suspects and advice: `Suspect`s and `AdviceItem`s as dicts, the best first; the last words' own suspects where none are given. roots:
    files are with_display_path relative to these (`memagent.diagnostics.console`). Anything may be missing.
    """
    suspects = suspects or [
        item
        for item in _listed(words, "suspects")
        if isinstance(item, Mapping) and "holder" in item
    ]
    search = _search(words)
    devices = words.get("devices") or {}
    told: Facts = devices.get(device) or next(iter(devices.values()), {})
    now = {**(reading or {}), **told}
    phase = str(words.get("phase") or "")
    asked, free = words.get("asked_bytes"), words.get("free_bytes")
    findings = (
        _where(phase),
        _asked(asked, free, now),
        _in_pieces(asked, free, now),
        _others(now),
        _predicted(now, predicted_peak_bytes),
        _last_peaks(_listed(words, "last_peaks")),
    )
    return OomReport(
        title=_title(phase, step, told.get("name")),
        findings=tuple(finding for finding in findings if finding),
        components=tuple(
            sorted(
                ((name, size) for name, size in (told.get("components") or {}).items() if size),
                key=lambda item: -item[1],
            )
        ),
        tensors=tuple(
            with_display_path(tensor, roots)
            for tensor in (words.get("largest_tensors") or ())[:_MOST_TENSORS]
        ),
        suspects=tuple(with_display_path(suspect, roots) for suspect in suspects),
        changes=_changes(phase, asked, free, now, suspects, advice),
        search=search_sentence(search) if search and not suspects else None,
        growth_bytes_per_step=search.get("growth_bytes_per_step"),
        looked_at_step=search.get("step"),
    )


def search_sentence(search: Facts) -> str:
    """What came of a search that named nobody, from the facts of `LeakMonitor.search`: nobody found is one thing, nobody looked another."""
    if search.get("step") is None:
        return (
            f"Nobody looked who holds the memory: {search.get('why_not') or 'it is not known why'}."
        )
    steps = f"steps {search.get('first_step') or 0:,} to {search['step']:,}"
    cut = ", until the time for it was up" if search.get("is_cut_short") else ""
    return f"No suspect was found: who holds what grew was looked for over {steps}{cut}."


def place_of(suspect: Facts) -> str:
    """`train.py:42`, as far as it is known."""
    line = suspect.get("line")
    return f"{suspect.get('file') or 'unknown file'}" + (f":{line}" if line else "")


def would_have_fitted_in_one_piece(asked: int | None, free: int | None, reading: Facts) -> bool:
    """Whether what the allocator held beyond its tensors, with what the device had free, would have been enough."""
    reserved, allocated = reading.get("reserved_bytes"), reading.get("allocated_bytes")
    if not asked or reserved is None or allocated is None:
        return False
    return bool((free or 0) < asked <= (free or 0) + reserved - allocated)


def _title(phase: str, step: int, name: str | None) -> str:
    where = f" in {phase} of step {step + 1:,}" if phase else f" in step {step + 1:,}"
    return f"Out of memory{where}" + (f" on {name}" if name else "")


def _where(phase: str) -> str | None:
    told = _PHASES.get(phase)
    return f"It happened {told}." if told else None


def _asked(asked: int | None, free: int | None, now: Facts) -> str | None:
    used, limit = now.get("used_bytes"), now.get("limit_bytes")
    full = (
        f"{format_bytes(used)} of {format_bytes(limit)} were used"
        if used is not None and limit
        else None
    )
    if not asked:
        return f"{full}." if full else None
    room = f" with {format_bytes(free)} free" if free is not None else ""
    return f"{format_bytes(asked)} were asked for{room}" + (f"; {full}." if full else ".")


def _in_pieces(asked: int | None, free: int | None, now: Facts) -> str | None:
    reserved, allocated = now.get("reserved_bytes"), now.get("allocated_bytes")
    if reserved is None or allocated is None or reserved - allocated < _MUCH_CACHE * reserved:
        return None
    cached = format_bytes(reserved - allocated)
    text = f"{format_bytes(reserved)} were reserved and {format_bytes(allocated)} allocated: {cached} lay in the cache"
    if would_have_fitted_in_one_piece(asked, free, now):
        return f"{text}, enough but in pieces. {EXPANDABLE} would probably have saved this step."
    return f"{text}, and joining the pieces would not have been enough."


def _others(now: Facts) -> str | None:
    others = now.get("other_processes_bytes")
    return f"Other processes held {format_bytes(others)} of the device." if others else None


def _predicted(now: Facts, predicted: int | None) -> str | None:
    if not predicted:
        return None
    peak = now.get("peak_allocated_bytes")
    if not peak:
        return f"The estimator had predicted a peak of {format_bytes(predicted)}."
    share = 100 * (peak - predicted) / predicted
    word = "above" if share > 0 else "below"
    return f"The newest peak was {format_bytes(peak)}, {abs(share):.0f} % {word} the prediction of {format_bytes(predicted)}."


def _listed(words: Facts, name: str) -> Sequence[Any]:
    """What an event says is checked by nobody before it comes here."""
    found = words.get(name)
    return found if isinstance(found, list | tuple) else ()


def _search(words: Facts) -> Facts:
    found = words.get("suspect_search")
    if not isinstance(found, Mapping):
        return {}
    kinds: dict[str, type] = {"why_not": str, "is_cut_short": bool}
    return {name: value for name, value in found.items() if type(value) is kinds.get(name, int)}


def _last_peaks(peaks: Sequence[Any]) -> str | None:
    """How it got there: a climb of many steps looks other than one that came from nowhere."""
    known = [
        peak
        for peak in peaks
        if isinstance(peak, list | tuple) and list(map(type, peak)) == [int, int]
    ]
    if len(known) < _LEAST_PEAKS:
        return None
    told = ", ".join(format_bytes(peak) for _, peak in known)
    return f"Peaks of steps {known[0][0]:,} to {known[-1][0]:,}: {told}."


def _changes(
    phase: str,
    asked: int | None,
    free: int | None,
    now: Facts,
    suspects: Sequence[Facts],
    advice: Sequence[Facts],
) -> tuple[tuple[str, int | None, str], ...]:
    found: list[tuple[str, int | None, str]] = []
    if suspects:
        found.append((_STOP_GROWTH, None, ""))
    if would_have_fitted_in_one_piece(asked, free, now):
        found.append(("Let the allocator join its pieces.", None, f"export {EXPANDABLE}"))
    found += [(item["change"], item.get("saving_bytes"), item.get("code") or "") for item in advice]
    if phase in _PHASE_ADVICE:
        found.append((_PHASE_ADVICE[phase], None, ""))
    return tuple(found)


def rate_text(kind: str | None, rate: float | None, growth_bytes_per_step: int | None) -> str:
    """`, 1.3 MiB a step`; where memory in use grew by more than the tensors that were counted, that too."""
    if not rate:
        return ""
    text = f", {format_bytes(rate)} a step"
    if (
        kind in _NO_TENSORS
        or not growth_bytes_per_step
        or growth_bytes_per_step < _MUCH_MORE * rate
    ):
        return text
    return f"{text} in tensors alone (memory in use grew by {format_bytes(growth_bytes_per_step)})"


def _suspect(suspect: Facts, growth_bytes_per_step: int | None, looked_at_step: int | None) -> str:
    step = suspect.get("step") or looked_at_step
    holder = f"{suspect['holder']} at step {step:,}" if step else suspect["holder"]
    grows = rate_text(suspect.get("kind"), suspect.get("bytes_per_step"), growth_bytes_per_step)
    return f"{place_of(suspect)}: {holder}{grows}. {suspect.get('fix') or ''}".rstrip()


def _tensor(tensor: Facts) -> str:
    shape = " x ".join(str(side) for side in tensor.get("shape") or ())
    place = f" ({place_of(tensor)})" if tensor.get("file") else ""
    return f"{tensor.get('name')}: {shape} {tensor.get('dtype')}, {format_bytes(tensor.get('size_bytes'))}{place}"
