"""The view of a run: messages of its ranks in, a few lines of text out. Pure, except for rich."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from memagent.units import format_bytes, format_duration

HEIGHT = 4
"""Lines that `render_lines` returns."""
_PACE_SMOOTHING = 0.3
"""Weight of the newest measurement in the pace."""
_STYLES = {"ok": "green", "notice": "cyan", "warning": "yellow", "critical": "bold red"}


@dataclass(frozen=True)
class RankView:
    """One rank, by its device nearest to the limit. Sizes are bytes, `pace` is steps a second."""

    run_id: str
    rank: int
    ranks: int
    step: int
    total_steps: int | None
    pace: float | None
    device: str
    used_bytes: int
    peak_bytes: int
    limit_bytes: int | None
    forecast: Mapping[str, Any]

    @property
    def left_s(self) -> float | None:
        """Seconds to the last planned step, at the current pace."""
        if not self.total_steps or not self.pace:
            return None
        return max(0, self.total_steps - self.step) / self.pace

    @property
    def used_share(self) -> float:
        """Used share of the limit, 0 without a limit."""
        return self.used_bytes / self.limit_bytes if self.limit_bytes else 0.0

    @property
    def peak_share(self) -> float:
        return self.peak_bytes / self.limit_bytes if self.limit_bytes else 0.0


@dataclass
class RunState:
    """The newest message of each rank, and the pace of the run."""

    newest: dict[int, Mapping[str, Any]] = field(default_factory=dict)
    pace: float | None = None
    _step: int = 0
    _at_s: float | None = None

    def update(self, message: Mapping[str, Any], now_s: float) -> None:
        """Take a message that arrived at `now_s` of a monotonic clock."""
        self.newest[int(message["rank"])] = message
        step = int(message["steps"])
        if self._at_s is None or step < self._step:
            self._step = step
            self._at_s = now_s
        elif step > self._step and now_s > self._at_s:
            pace = (step - self._step) / (now_s - self._at_s)
            if self.pace is not None:
                pace = _PACE_SMOOTHING * pace + (1 - _PACE_SMOOTHING) * self.pace
            self.pace = pace
            self._step = step
            self._at_s = now_s

    def fullest_rank(self) -> RankView | None:
        """Return the rank nearest to its limit, or None before the first message."""
        ranks = [self._rank_view(message) for message in self.newest.values()]
        return max(ranks, key=lambda rank: (rank.peak_share, -rank.rank), default=None)

    def _rank_view(self, message: Mapping[str, Any]) -> RankView:
        forecast = message["forecast"] or {}
        device = next(iter(message["peaks"].values()))
        peak = int(device["peak_allocated_bytes"])
        return RankView(
            run_id=message["run_id"],
            rank=int(message["rank"]),
            ranks=len(self.newest),
            step=max(int(newest["steps"]) for newest in self.newest.values()),
            total_steps=message["total_steps"],
            pace=self.pace,
            device=device["name"],
            used_bytes=int(forecast.get("used_bytes") or peak),
            peak_bytes=peak,
            limit_bytes=device["limit_bytes"],
            forecast=forecast,
        )


def render_line(view: RankView) -> str:
    """Return the view as one plain line."""
    memory = f"{_memory(view)} on {_device(view)}"
    return "; ".join([*_progress(view), memory, _forecast(view)])


def render_lines(view: RankView, columns: int, *, in_color: bool) -> list[str]:
    """Return HEIGHT lines of at most `columns` characters, not counting color sequences."""
    from rich.console import Console
    from rich.progress_bar import ProgressBar
    from rich.rule import Rule
    from rich.table import Table
    from rich.text import Text

    console = Console(
        file=io.StringIO(),
        force_terminal=True,
        width=columns,
        color_system="standard" if in_color else None,
    )
    style = _STYLES.get(str(view.forecast.get("level", "ok")), "")
    memory = _memory(view)
    bar = Table.grid(padding=(0, 1))
    bar.add_column(width=max(8, min(30, columns - len(memory) - 2)))
    bar.add_column(no_wrap=True, overflow="ellipsis")
    used = ProgressBar(total=1.0, completed=view.used_share, complete_style=style)
    bar.add_row(used, Text(memory))
    rows: list[Any] = [
        Rule(f"memagent · {view.run_id} · {_device(view)}", align="left", style="dim"),
        Text(" · ".join(_progress(view)), no_wrap=True, overflow="ellipsis"),
        bar,
        Text(_forecast(view), style=style, no_wrap=True, overflow="ellipsis"),
    ]
    with console.capture() as captured:
        for row in rows:
            console.print(row)
    return [*captured.get().splitlines(), *[""] * HEIGHT][:HEIGHT]


def _progress(view: RankView) -> list[str]:
    step = f"step {view.step:,}" + (f" of {view.total_steps:,}" if view.total_steps else "")
    pace = f"{view.pace:,.3g} steps/s" if view.pace else "–"
    time_left = [f"{format_duration(view.left_s)} left"] if view.left_s is not None else []
    return [step, pace, *time_left]


def _device(view: RankView) -> str:
    return view.device if view.ranks == 1 else f"{view.device}, rank {view.rank} of {view.ranks}"


def _memory(view: RankView) -> str:
    used, peak = format_bytes(view.used_bytes), format_bytes(view.peak_bytes)
    if not view.limit_bytes:
        return f"{used} used, peak {peak}"
    limit = format_bytes(view.limit_bytes)
    headroom = format_bytes(max(0, view.limit_bytes - view.peak_bytes))
    return f"{used} of {limit} ({view.used_share:.0%}), peak {peak}, headroom {headroom}"


def _forecast(view: RankView) -> str:
    forecast = view.forecast
    level = str(forecast.get("level", "ok"))
    if level == "ok":
        return "forecast: ok"
    text = f"forecast: {level}: out of memory"
    eta, eta_s = forecast.get("eta_step"), forecast.get("eta_s")
    if eta is not None:
        text += f" in about {max(0, round(eta - view.step)):,} steps"
        text += f" ({format_duration(eta_s)})" if eta_s is not None else ""
    text += f", {forecast.get('oom_probability', 0.0):.0%} likely"
    return text + (f"; cause: {forecast['cause']}" if forecast.get("cause") else "")
