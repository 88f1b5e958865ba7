"""Compare the memory of a run's ranks. Pure functions: streams of GET /runs/{id} in, text out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from memagent.units import format_bytes
from memagent_server.schemas.runs import Stream
from memagent_server.web.labels import signed_bytes

EVEN_RATIO = 0.05
"""Ranks are even if their peaks differ by at most this share of the median."""


@dataclass(frozen=True)
class RankBalance:
    """A rank's row. `relative` is its peak minus the median of all ranks."""

    rank: int
    device: str
    name: str
    peak: str
    share: str
    headroom: str
    relative: str


def compared_ranks(streams: Sequence[Stream]) -> list[Stream]:
    """Return the comparable streams, of GPUs if any; empty for fewer than two ranks."""
    known = [stream for stream in streams if stream.samples]
    on_gpu = [stream for stream in known if stream.kind != "host"]
    compared = sorted(on_gpu or known, key=lambda stream: (stream.rank, stream.device))
    return compared if len({stream.rank for stream in compared}) > 1 else []


def imbalance(streams: Sequence[Stream]) -> str:
    """Describe how evenly the ranks use memory; empty if fewer than two peaks are known."""
    peaks = sorted((stream.peak_bytes, stream.rank) for stream in streams if stream.peak_bytes)
    if len(peaks) < 2:
        return ""
    (lowest, emptiest), (highest, fullest) = peaks[0], peaks[-1]
    middle = median(peak for peak, _ in peaks)
    if highest - lowest <= EVEN_RATIO * middle:
        spread = max(1, round(100 * (highest - lowest) / middle))
        return f"Even: the peaks of {len(peaks)} ranks are within {spread} % of each other."
    fullest_text = f"Uneven: rank {fullest} peaks at {format_bytes(highest)}"
    if len(peaks) == 2:
        return f"{fullest_text}, {round(100 * (highest / lowest - 1))} % above rank {emptiest}."
    over = round(100 * (highest / middle - 1))
    return (
        f"{fullest_text}, {over} % above the median of {len(peaks)} ranks; "
        f"rank {emptiest} at {format_bytes(lowest)}."
    )


def rank_rows(streams: Sequence[Stream]) -> list[RankBalance]:
    """Return the heat map as table rows."""
    peaks = [stream.peak_bytes for stream in streams if stream.peak_bytes]
    middle = median(peaks) if peaks else None
    return [_rank_row(stream, middle) for stream in streams]


def _rank_row(stream: Stream, middle: float | None) -> RankBalance:
    peak, limit = stream.peak_bytes, stream.limit_bytes
    headroom = limit - peak if limit and peak else None
    return RankBalance(
        rank=stream.rank,
        device=stream.device,
        name=stream.name,
        peak=format_bytes(peak),
        share=_share(peak, limit),
        headroom=format_bytes(headroom).replace("-", "−"),
        relative=signed_bytes(round(peak - middle)) if middle and peak else "–",
    )


def _share(part: float | None, whole: float | None) -> str:
    return f"{100 * part / whole:.0f} %" if part is not None and whole else "–"
