"""How evenly the ranks of a run are filled, in words. Pure: streams as GET /runs/{id} describes them in, text out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from memagent.units import format_bytes
from memagent_server.web.labels import Record, signed_bytes

EVEN_RATIO = 0.05
"""Ranks whose peaks are no further apart than this share of the median are called even."""


@dataclass(frozen=True)
class RankRow:
    """A rank beside the others. `beside` holds its peak against the median of all."""

    rank: int
    device: str
    name: str
    peak: str
    share: str
    headroom: str
    beside: str


def compared_ranks(streams: Sequence[Record]) -> list[Record]:
    """The streams that can be held against each other: those of GPUs where there are any. Empty where fewer than two ranks have one."""
    known = [stream for stream in streams if stream["samples"]]
    on_gpu = [stream for stream in known if stream["kind"] != "host"]
    chosen = sorted(on_gpu or known, key=lambda stream: (stream["rank"], stream["device"]))
    return chosen if len({stream["rank"] for stream in chosen}) > 1 else []


def imbalance(streams: Sequence[Record]) -> str:
    """One sentence on how evenly the ranks are filled, by their peaks; empty where fewer than two are known."""
    peaks = sorted(
        (stream["peak_bytes"], stream["rank"]) for stream in streams if stream["peak_bytes"]
    )
    if len(peaks) < 2:
        return ""
    (least, emptiest), (most, fullest), middle = (
        peaks[0],
        peaks[-1],
        median(peak for peak, _ in peaks),
    )
    if most - least <= EVEN_RATIO * middle:
        return f"Even: the peaks of {len(peaks)} ranks are within {max(1, round(100 * (most - least) / middle))} % of each other."
    fullest_text = f"Uneven: rank {fullest} peaks at {format_bytes(most)}"
    if len(peaks) == 2:
        return f"{fullest_text}, {round(100 * (most / least - 1))} % above rank {emptiest}."
    over = round(100 * (most / middle - 1))
    return f"{fullest_text}, {over} % above the median of {len(peaks)} ranks; rank {emptiest} at {format_bytes(least)}."


def rank_rows(streams: Sequence[Record]) -> list[RankRow]:
    """The heat map's ranks in words."""
    peaks = [stream["peak_bytes"] for stream in streams if stream["peak_bytes"]]
    middle = median(peaks) if peaks else None
    return [
        RankRow(
            rank=stream["rank"], device=stream["device"], name=stream["name"], peak=format_bytes(stream["peak_bytes"]),
            share=_share(stream["peak_bytes"], stream["limit_bytes"]),
            headroom=format_bytes(
                stream["limit_bytes"] - stream["peak_bytes"] if stream["limit_bytes"] and stream["peak_bytes"] else None
            ).replace("-", "−"),
            beside=signed_bytes(round(stream["peak_bytes"] - middle)) if middle and stream["peak_bytes"] else "–",
        )
        for stream in streams
    ]  # fmt: skip


def _share(part: float | None, whole: float | None) -> str:
    return f"{100 * part / whole:.0f} %" if part is not None and whole else "–"
