"""An estimate as text for terminals, with or without colors. Values in, lines out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from memagent.estimator.advice.catalog import TOGETHER, cheapest_that_fits
from memagent.estimator.cards import smallest_cards
from memagent.estimator.estimate import Estimate
from memagent.estimator.search import GridPoint
from memagent.units import format_bytes
from memagent.wire.messages import AdviceItem

_BAR_WIDTH = 40
_NAME_WIDTH = 18
_MAX_SHORT_ADVICE = 6
_MAX_TENSORS = 3
_MIN_EXCESS_RATIO = 1.02
"""Sum of the components over the peak from which on the view explains the difference."""
_CERTAIN = 0.98
"""Probability from which on the verdict does not mention it."""
_RED, _GREEN, _YELLOW = "\033[31m", "\033[32m", "\033[33m"
_BOLD, _DIM, _PLAIN = "\033[1m", "\033[2m", "\033[0m"
_LEVELS = (
    ("allocated", "tensors' peak", "peak_allocated_bytes"),
    ("reserved", "reserved by torch", "peak_reserved_bytes"),
    ("device", "on the device", "peak_device_bytes"),
)
_TRAINING = (
    "model_class",
    "precision",
    "autocast",
    "optimizer",
    "checkpointing",
    "attention",
    "loss",
    "loop",
    "lora",
    "quantised",
    "kbit_training",
    "parallel",
)
"""Assumptions to show in the heading."""


@dataclass(frozen=True)
class Style:
    """Terminal colors, or none."""

    color: bool = False

    def red(self, text: str) -> str:
        return self._styled(_RED, text)

    def green(self, text: str) -> str:
        return self._styled(_GREEN, text)

    def yellow(self, text: str) -> str:
        return self._styled(_YELLOW, text)

    def bold(self, text: str) -> str:
        return self._styled(_BOLD, text)

    def dim(self, text: str) -> str:
        return self._styled(_DIM, text)

    def _styled(self, code: str, text: str) -> str:
        return f"{code}{text}{_PLAIN}" if self.color else text


def render(
    estimate: Estimate, *, style: Style, title: str = "", all_advice: bool = False
) -> Iterator[str]:
    """Return the lines of an estimate; `all_advice` lists all advice with its code."""
    yield from _unasked(estimate, style)
    yield from (style.dim(line) for line in _heading(estimate, title))
    yield ""
    yield from _bars(estimate)
    yield ""
    yield from _levels(estimate)
    yield from _phases(estimate)
    yield ""
    yield _verdict(estimate, style)
    yield from _smallest_cards(estimate)
    yield from (f"  {note}" for note in _notes(estimate.assumptions))
    yield from _largest_tensors(estimate)
    if estimate.advice:
        yield ""
        yield from _advice(estimate, style, is_complete=all_advice)


def _unasked(estimate: Estimate, style: Style) -> Iterator[str]:
    """Yield what is answered in place of what was asked, and what was chosen."""
    if "trace" in estimate.assumptions:
        answer = "No estimate, but the least that it needs" if estimate.is_bound else "By formula"
        yield style.bold(f"{answer} in place of a trace: {estimate.assumptions['trace']}")
    yield from map(style.bold, estimate.assumptions.get("remarks", ()))


def _heading(estimate: Estimate, title: str) -> Iterator[str]:
    assumptions = estimate.assumptions
    size = ""
    if "parameters" in assumptions:
        size = f" ({_count(assumptions['parameters'])} parameters)"
    if title or size:
        yield f"{title or assumptions.get('model', '')}{size}"
    options = [
        f"{name.replace('_', ' ')} {assumptions[name]}"
        for name in _TRAINING
        if isinstance(assumptions.get(name), str) and assumptions[name]
    ]
    if assumptions.get("accumulation", 1) != 1:
        options.append(f"{assumptions['accumulation']} forwards a step")
    if options:
        yield ", ".join(options)


def _count(number: int) -> str:
    for size, unit in ((10**9, "billion"), (10**6, "million")):
        if number >= size:
            return f"{number / size:.3g} {unit}"
    return f"{number:,}"


def _bars(estimate: Estimate) -> Iterator[str]:
    largest = max(estimate.components.values(), default=0)
    for name, size in estimate.components.items():
        if size:
            bar = "█" * round(_BAR_WIDTH * size / largest) or "▏"
            yield f"{name.replace('_', ' '):<{_NAME_WIDTH}}{format_bytes(size):>10}  {bar}"


def _levels(estimate: Estimate) -> Iterator[str]:
    for level, name, field in _LEVELS:
        peak = getattr(estimate, field)
        if peak is None:
            continue
        line = f"{name:<{_NAME_WIDTH}}{format_bytes(peak):>10}"
        if estimate.is_bound:
            line += "  at least"
        if level in estimate.intervals:
            low, high = estimate.intervals[level]
            line += f"  between {format_bytes(low)} and {format_bytes(high)}"
        yield line


def _phases(estimate: Estimate) -> Iterator[str]:
    peaks = {name: size for name, size in estimate.phases.items() if name != "data"}
    if len(peaks) > 1:
        listed = "  ".join(f"{name} {format_bytes(size)}" for name, size in peaks.items())
        yield f"{'in each phase':<{_NAME_WIDTH}}{listed}"
    if sum(estimate.components.values()) > _MIN_EXCESS_RATIO * estimate.needed_bytes:
        yield "(the parts above do not all live at once: they add up to more than the peak)"


def _verdict(estimate: Estimate, style: Style) -> str:
    text = estimate.verdict()
    if estimate.outcome is None and not estimate.is_bound:
        return f"{style.bold(text)}; add --gpu, a card or memory such as 24GiB, to see if it fits"
    probability = estimate.fit_probability
    if probability is not None and 1 - _CERTAIN < probability < _CERTAIN:
        text += f"; {probability:.0%} likely to fit"
    paints = {"fits": style.green, "tight": style.yellow, "won't fit": style.red}
    paint = paints.get(estimate.outcome or "", style.yellow)
    return style.bold(paint(text))


def _smallest_cards(estimate: Estimate) -> Iterator[str]:
    """Yield the smallest cards that have room for the whole interval of the device's level."""
    if estimate.outcome == "fits" or "device" not in estimate.intervals:
        return
    cards = smallest_cards(estimate.intervals["device"][1])
    if cards:
        listed = (f"{card.key} ({format_bytes(card.total_bytes)})" for card in cards)
        yield f"  smallest cards it fits on, one of each size: {', '.join(listed)}"


def _notes(assumptions: dict[str, Any]) -> list[str]:
    notes = [str(note) for note in assumptions.get("notes", ())]
    names = ("activations", "device")
    return notes + [f"{name}: {assumptions[name]}" for name in names if name in assumptions]


def _largest_tensors(estimate: Estimate) -> Iterator[str]:
    tensors = estimate.assumptions.get("largest_tensors") or ()
    if tensors:
        yield ""
        yield "Largest tensors at the peak"
    for tensor in tensors[:_MAX_TENSORS]:
        shape = " x ".join(map(str, tensor["shape"]))
        kind = f"{tensor['component'].replace('_', ' ')}, {shape} {tensor['dtype']}"
        place = " ".join(str(tensor[name]) for name in ("module", "source") if tensor[name])
        yield f"{format_bytes(tensor['size_bytes']):>10}  {kind}  {place or tensor['op']}".rstrip()


def _advice(estimate: Estimate, style: Style, *, is_complete: bool) -> Iterator[str]:
    together = next((item for item in estimate.advice if item.change.startswith(TOGETHER)), None)
    if together is not None:
        yield from _together(estimate, together, style, has_code=is_complete)
        if not is_complete:
            yield ""
    single = tuple(item for item in estimate.advice if item is not together)
    listed = single if is_complete else single[:_MAX_SHORT_ADVICE]
    cheapest = cheapest_that_fits(estimate) if together is None else None
    if cheapest is not None and cheapest not in listed:
        listed = (*listed[:-1], cheapest)
    width = max((len(item.change) for item in listed), default=0)
    if listed:
        yield style.bold(f"{'What would save memory':<{width}}{'saves':>12}{'then needs':>12}")
    for item in listed:
        yield _advice_line(estimate, item, width, style)
        if is_complete:
            yield from _code(item)
    if cheapest is not None:
        yield f"The cheapest change that makes it fit: {cheapest.change}."
    remaining = len(single) - len(listed)
    if not is_complete:
        more = f"{remaining} more, and " if remaining else ""
        yield style.dim(f"--advice shows {more}the lines of code for each.")


def _together(
    estimate: Estimate, item: AdviceItem, style: Style, *, has_code: bool
) -> Iterator[str]:
    then = format_bytes(estimate.needed_bytes - item.saving_bytes)
    yield style.bold(
        f"No change alone makes it fit on this GPU. These do together, and then it needs {then}:"
    )
    yield from (f"  + {name}" for name in item.change.removeprefix(TOGETHER).split(" + "))
    yield f"  {style.dim(item.cost)}"
    if has_code:
        yield from _code(item)


def _advice_line(estimate: Estimate, item: AdviceItem, width: int, style: Style) -> str:
    then = estimate.needed_bytes - item.saving_bytes
    fits = ""
    if estimate.outcome not in (None, "fits"):
        fits = style.green(" fits") if estimate.fits_with(item.saving_bytes) else "     "
    saving = f"{format_bytes(item.saving_bytes):>12}{format_bytes(then):>12}"
    return f"{item.change:<{width}}{saving}{fits}  {style.dim(item.cost)}".rstrip()


def _code(item: AdviceItem) -> Iterator[str]:
    yield from (f"    {line}".rstrip() for line in item.code.splitlines())
    yield ""


def render_grid(
    points: Sequence[GridPoint], limit_bytes: int | None, *, style: Style
) -> Iterator[str]:
    """Return the lines of a table with batches as columns and sequences as rows."""
    batches = list(dict.fromkeys(point.batch for point in points))
    sequences = list(dict.fromkeys(point.sequence for point in points))
    # all points have the same reason, unless only some took too long
    yield from dict.fromkeys(line for p in points for line in _unasked(p.estimate, style))
    columns = "".join(f"{f'batch {batch}':>14}  " for batch in batches).rstrip()
    yield style.bold(f"{'sequence':>8}{columns}")
    for sequence in sequences:
        row = [_cell(point.estimate, style) for point in points if point.sequence == sequence]
        yield f"{'own' if sequence is None else sequence:>8}{''.join(row)}".rstrip()
    if limit_bytes is not None:
        yield style.dim(f"! won't fit in {format_bytes(limit_bytes)}, ~ is tight")
    if any(point.estimate.is_bound for point in points):
        yield style.dim("? at least: activations are not known")


def _cell(estimate: Estimate, style: Style) -> str:
    size = f"{format_bytes(estimate.needed_bytes):>14}"
    if estimate.is_bound and estimate.outcome != "won't fit":
        return style.yellow(f"{size} ?")
    if estimate.outcome == "tight":
        return style.yellow(f"{size} ~")
    return style.red(f"{size} !") if estimate.outcome == "won't fit" else f"{size}  "
