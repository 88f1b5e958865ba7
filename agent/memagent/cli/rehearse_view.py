"""A rehearsal as text for terminals. Values in, lines out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from textwrap import wrap
from typing import Any

from memagent.rehearsal.batch_search import BatchSearch
from memagent.rehearsal.report import Rehearsal
from memagent.rehearsal.what_if import NOT_TRIED, ChangedRun, WhatIf
from memagent.units import format_bytes, format_duration

_MAX_FILES = 5
_WIDTH = 18
_COLUMNS = ["", "saves of tensors", "of reserved", "then on the device", "rehearsed in"]
_BATCH_VERDICTS = {True: "fits", False: "does not fit", None: "no verdict"}


def render(result: Rehearsal, title: str) -> list[str]:
    """Return the verdict, the levels of memory, and what the figures don't say."""
    card = result.machine.card
    rank = f"one of {result.machine.ranks} ranks of " if result.machine.ranks > 1 else ""
    heading = f"{rank}{title} on {card.name}, {format_bytes(result.capacity_bytes)}"
    return [heading, verdict(result), *_levels(result), *_notes(result)]


def verdict(result: Rehearsal) -> str:
    """Return one sentence: fits or not, and by how much."""
    _, middle, _ = result.device_bytes
    high = result.untuned_high_bytes
    capacity = result.capacity_bytes
    if result.status == "oom":
        return f"does not fit: {_out_of_memory(result.error or {}, card=result.machine.card.name)}"
    if result.fits is None:
        known = f"; up to there {format_bytes(middle)}" if result.peak_reserved_bytes else ""
        steps = f"after {result.steps:,} steps" if result.steps else "before its first step"
        return f"no verdict: {result.end}, {steps}{known}"
    spare = f"{format_bytes(result.spare_bytes)} to spare"
    if result.is_certain:
        return f"fits, with {spare} (at least {format_bytes(capacity - high)})"
    return (
        f"fits by a narrow margin: {spare}, and {format_bytes(high - capacity)} too little with "
        f"the largest {'workspaces of cuDNN' if result.has_convolutions else 'CUDA context'} known"
    )


def batch_line(batch: int, result: Rehearsal, elapsed_s: float) -> str:
    """Return the line about one batch of a search."""
    text = f"batch {batch:>7,}   {_BATCH_VERDICTS[result.fits]:<12} "
    if result.fits:
        text += f"{format_bytes(result.device_bytes[1]):>10} on the device"
    else:
        text += verdict(result).removeprefix("does not fit: ").removeprefix("no verdict: ")
    return f"{text}   ({format_duration(elapsed_s)})"


def batch_sentence(search: BatchSearch) -> str:
    """Return the largest batch that fits, or what is known of it."""
    if search.is_complete and not search.largest:
        return f"  {'largest batch':<{_WIDTH}} none: not even 1 fits"
    known = "" if search.is_complete else "at least "
    limit = f"; {search.too_large:,} does not fit" if search.too_large else ""
    largest = f"{known}{search.largest:,}" if search.largest else "unknown"
    return f"  {'largest batch':<{_WIDTH}} {largest}{limit}"


def what_if_lines(what_if: WhatIf) -> list[str]:
    """Return a table of the changes, the largest saving first, and those that weren't tried."""
    rows = [_COLUMNS] + [_what_if_row(run) for run in what_if.sorted()]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for name, *cells in rows:
        aligned = [f"{cell:>{width}}" for cell, width in zip(cells, widths[1:], strict=True)]
        lines.append("  " + "   ".join([f"{name:<{widths[0]}}", *aligned]))
    return [
        "what if",
        *lines,
        *wrap(f"not tried: {', '.join(NOT_TRIED)}", 100, subsequent_indent="  "),
    ]


def _what_if_row(run: ChangedRun) -> list[str]:
    now = run.result.device_bytes[1]
    return [
        run.name,
        format_bytes(run.allocated_saving_bytes),
        format_bytes(run.reserved_saving_bytes),
        format_bytes(now) if run.result.fits else _BATCH_VERDICTS[run.result.fits],
        format_duration(run.elapsed_s),
    ]


def _out_of_memory(error: Mapping[str, Any], card: str) -> str:
    title = error.get("title") or f"Out of memory in step {error.get('step', 1)}"
    place = f", at {error['file']}, line {error['line']}" if error.get("file") else ""
    return title[0].lower() + title[1:].removesuffix(f" on {card}") + place


def _levels(result: Rehearsal) -> Iterator[str]:
    if not result.peak_reserved_bytes:
        return
    low, middle, high = result.device_bytes
    unused = result.peak_reserved_bytes - result.peak_allocated_bytes
    yield _row("tensors' peak", result.peak_allocated_bytes, "")
    yield _row(
        "reserved by torch", result.peak_reserved_bytes, f"{format_bytes(unused)} of it unused"
    )
    causes = "the CUDA context and cache"
    if result.has_convolutions:
        causes = "the CUDA context and cuDNN's workspaces"
    if result.tunes_convolutions:
        causes = "trials of cudnn.benchmark, which take the free memory"
    if result.communicators:
        least, usual, most = result.nccl_bytes
        count = f"{result.communicators} communicator{'s' if result.communicators > 1 else ''}"
        interval = f"{format_bytes(least)} to {format_bytes(most)}, {count}"
        yield _row("NCCL's buffers", usual, interval)
    yield _row("on the device", middle, f"{format_bytes(low)} to {format_bytes(high)}, by {causes}")
    if result.phases:
        yield f"  {'peak by phase':<{_WIDTH}} {_sizes(result.phases)}"
    components = {name: size for name, size in result.components.items() if size}
    if components:
        yield f"  {'held':<{_WIDTH}} {_sizes(components)}"


def _notes(result: Rehearsal) -> Iterator[str]:
    if result.host_peak_bytes:
        yield f"  {'host memory':<{_WIDTH}} {format_bytes(result.host_peak_bytes)}"
    yield f"  {'steps':<{_WIDTH}} {result.steps:,}; {result.end}"
    if result.retries:
        yield f"  {'retries':<{_WIDTH}} {result.retries:,}: torch emptied its cache and tried again"
    if result.error:
        yield f"  {'error':<{_WIDTH}} {result.error['message']}"
    if result.place:
        yield f"  {'waits at':<{_WIDTH}} {result.place['file']}, line {result.place['line']}"
    if not result.has_kernels:
        yield f"  {'kernels':<{_WIDTH}} this torch has none for the card: a run needs another build"
    yield f"  {'left out':<{_WIDTH}} {'; '.join(result.left_out)}"
    if result.reads:
        places = [f"{item['file']}:{item['line']}" for item in result.reads[:_MAX_FILES]]
        yield (
            f"  {'reads of values':<{_WIDTH}} {', '.join(places)}: those of large tensors are zeros"
        )
    if result.files:
        names = ", ".join(name for name, _ in result.files[:_MAX_FILES])
        size = sum(size for _, size in result.files)
        yield (
            f"  {'wrote':<{_WIDTH}} {len(result.files)} files ({format_bytes(size)}) to a copy "
            f"of this folder, now removed: {names}"
        )
    if result.outside_files:
        names = ", ".join(result.outside_files[:_MAX_FILES])
        yield f"  {'not caught':<{_WIDTH}} writes outside of this folder: {names}"


def _row(name: str, size: int, note: str) -> str:
    return f"  {name:<{_WIDTH}} {format_bytes(size):>10}   {note}".rstrip()


def _sizes(sizes: Mapping[str, int | None]) -> str:
    return ", ".join(
        f"{name.replace('_', ' ')} {format_bytes(size)}" for name, size in sizes.items()
    )
