"""An estimate as people read it at a terminal: plain text of a given width, coloured only where asked. Values in, lines out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from memagent.estimator.advice.ranking import TOGETHER, cheapest_that_fits
from memagent.estimator.engine import Cell
from memagent.estimator.estimate import Estimate
from memagent.units import format_bytes
from memagent.wire.messages import AdviceItem

BAR = 40
SHORT = 6
"""RunningLeastSquares of advice where not all of it was asked for."""
_NAME = 18
_RED, _GREEN, _BOLD, _DIM, _PLAIN = "\033[31m", "\033[32m", "\033[1m", "\033[2m", "\033[0m"
_LEVELS = (
    ("allocated", "tensors' peak", "peak_allocated_bytes"),
    ("reserved", "reserved by torch", "peak_reserved_bytes"),
    ("device", "on the device", "peak_device_bytes"),
)


@dataclass(frozen=True)
class Style:
    """Colours, or none."""

    colour: bool = False

    def red(self, text: str) -> str:
        return self._in(_RED, text)

    def green(self, text: str) -> str:
        return self._in(_GREEN, text)

    def bold(self, text: str) -> str:
        return self._in(_BOLD, text)

    def dim(self, text: str) -> str:
        return self._in(_DIM, text)

    def _in(self, code: str, text: str) -> str:
        return f"{code}{text}{_PLAIN}" if self.colour else text


def screen(
    found: Estimate, *, ink: Style, title: str = "", everything: bool = False
) -> Iterator[str]:
    """The whole answer; `title` says what was asked, `everything` gives all advice with its lines of code."""
    yield from (ink.dim(line) for line in _asked(found, title))
    yield ""
    yield from _bars(found)
    yield ""
    yield from _levels(found)
    yield from _phases(found)
    yield ""
    yield _verdict(found, ink)
    yield from (f"  {note}" for note in _notes(found.assumptions))
    yield from _largest_tensors(found)
    if found.advice:
        yield ""
        yield from _advice(found, ink, everything=everything)


_TRAINING = (
    "precision",
    "autocast",
    "optimizer",
    "checkpointing",
    "attention",
    "loss",
    "lora",
    "quantised",
    "parallel",
)


def _asked(found: Estimate, title: str) -> Iterator[str]:
    """What was asked, and how the estimate understood it."""
    taken = found.assumptions
    size = f" ({_count(taken['parameters'])} parameters)" if "parameters" in taken else ""
    if title or size:
        yield f"{title or taken.get('model', '')}{size}"
    said = [f"{name} {taken[name]}" for name in _TRAINING if isinstance(taken.get(name), str)]
    said += (
        [f"{taken['accumulation']} forwards a step"] if taken.get("accumulation", 1) != 1 else []
    )
    if said:
        yield ", ".join(said)


def _count(number: int) -> str:
    for size, unit in ((10**9, "billion"), (10**6, "million")):
        if number >= size:
            return f"{number / size:.3g} {unit}"
    return f"{number:,}"


def _bars(found: Estimate) -> Iterator[str]:
    widest = max(found.components.values(), default=0)
    for name, size in found.components.items():
        if size:
            bar = "█" * round(BAR * size / widest) or "▏"
            yield f"{name.replace('_', ' '):<{_NAME}}{format_bytes(size):>10}  {bar}"


def _levels(found: Estimate) -> Iterator[str]:
    for level, name, field in _LEVELS:
        peak = getattr(found, field)
        if peak is None:
            continue
        line = f"{name:<{_NAME}}{format_bytes(peak):>10}"
        if level in found.intervals:
            low, high = found.intervals[level]
            line += f"  between {format_bytes(low)} and {format_bytes(high)}"
        yield line


def _phases(found: Estimate) -> Iterator[str]:
    """The peak is that of the fullest phase, never the sum of the parts: a reader who adds them up should know why."""
    peaks = {name: size for name, size in found.phases.items() if name != "data"}
    if len(peaks) > 1:
        yield f"{'in each phase':<{_NAME}}" + "  ".join(
            f"{name} {format_bytes(size)}" for name, size in peaks.items()
        )
    held = sum(found.components.values())
    if held > 1.02 * found.needed_bytes:
        yield "(the parts above do not all live at once: they add up to more than the peak)"


def _verdict(found: Estimate, ink: Style) -> str:
    text = found.verdict()
    if found.fits is None:
        return f"{ink.bold(text)}; with --gpu, a card or memory such as 24GiB, you are told whether it fits"
    likely = found.fit_probability
    if likely is not None and 0.02 < likely < 0.98:
        text += f"; {likely:.0%} likely to fit"
    return ink.bold(ink.green(text) if found.fits else ink.red(text))


def _notes(assumptions: dict[str, Any]) -> list[str]:
    notes = [str(note) for note in assumptions.get("notes", ())]
    return notes + [
        f"{name}: {assumptions[name]}"
        for name in ("trace", "activations", "device")
        if name in assumptions
    ]


def _largest_tensors(found: Estimate) -> Iterator[str]:
    tensors = found.assumptions.get("largest_tensors") or ()
    if tensors:
        yield ""
        yield "Largest tensors at the peak"
    for tensor in tensors[:3]:
        shape = " x ".join(map(str, tensor["shape"]))
        what = f"{tensor['component'].replace('_', ' ')}, {shape} {tensor['dtype']}"
        where = " ".join(str(tensor[name]) for name in ("module", "source") if tensor[name])
        yield f"{format_bytes(tensor['size_bytes']):>10}  {what}  {where or tensor['op']}".rstrip()


def _advice(found: Estimate, ink: Style, *, everything: bool) -> Iterator[str]:
    together = next((item for item in found.advice if item.change.startswith(TOGETHER)), None)
    if together is not None:
        yield from _together(found, together, ink, everything=everything)
        if not everything:
            yield ""
    alone = tuple(item for item in found.advice if item is not together)
    shown = alone if everything else alone[:SHORT]
    cheapest = cheapest_that_fits(found) if together is None else None
    if cheapest is not None and cheapest not in shown:
        shown = (*shown[:-1], cheapest)
    widest = max((len(item.change) for item in shown), default=0)
    if shown:
        yield ink.bold(f"{'What would save memory':<{widest}}{'saves':>12}{'then needs':>12}")
    for item in shown:
        yield from _advised(found, item, widest, ink, everything=everything)
    if cheapest is not None:
        yield f"Costs least of what makes it fit: {cheapest.change}."
    left = len(alone) - len(shown)
    if not everything:
        yield ink.dim(
            f"--advice shows {f'{left} more, and ' if left else ''}the lines of code for each."
        )


def _together(found: Estimate, item: AdviceItem, ink: Style, *, everything: bool) -> Iterator[str]:
    then = format_bytes(found.needed_bytes - item.saving_bytes)
    yield ink.bold(
        f"No change alone makes it fit on this GPU. These do together, and then it needs {then}:"
    )
    yield from (f"  + {name}" for name in item.change.removeprefix(TOGETHER).split(" + "))
    yield f"  {ink.dim(item.cost)}"
    if everything:
        yield from _code(item)


def _advised(
    found: Estimate, item: AdviceItem, widest: int, ink: Style, *, everything: bool
) -> Iterator[str]:
    then = found.needed_bytes - item.saving_bytes
    fits = (
        ""
        if found.limit_bytes is None or found.fits
        else ink.green(" fits")
        if then <= found.limit_bytes
        else "     "
    )
    line = f"{item.change:<{widest}}{format_bytes(item.saving_bytes):>12}{format_bytes(then):>12}{fits}  {ink.dim(item.cost)}"
    yield line.rstrip()
    if everything:
        yield from _code(item)


def _code(item: AdviceItem) -> Iterator[str]:
    yield from (f"    {line}".rstrip() for line in item.code.splitlines())
    yield ""


def table(cells: Sequence[Cell], limit_bytes: int | None, *, ink: Style) -> Iterator[str]:
    """Batches across, sequences down."""
    columns = list(dict.fromkeys(cell.batch for cell in cells))
    rows = list(dict.fromkeys(cell.sequence for cell in cells))
    yield ink.bold(
        f"{'sequence':>8}" + "".join(f"{f'batch {batch}':>14}  " for batch in columns).rstrip()
    )
    for sequence in rows:
        line = "".join(_cell(cell.estimate, ink) for cell in cells if cell.sequence == sequence)
        yield f"{'own' if sequence is None else sequence:>8}{line}".rstrip()
    if limit_bytes is not None:
        yield ink.dim(f"! does not fit in {format_bytes(limit_bytes)}")


def _cell(found: Estimate, ink: Style) -> str:
    size = f"{format_bytes(found.needed_bytes):>14}"
    return f"{size}  " if found.fits is not False else ink.red(f"{size} !")
