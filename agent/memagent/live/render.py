"""The view as text: a few lines drawn by rich for a terminal, or one plain line."""

from __future__ import annotations

import io
from typing import Any

from memagent.live.state import RankView
from memagent.units import format_bytes, format_duration

HEIGHT = 4
_STYLES = {"ok": "green", "notice": "cyan", "warning": "yellow", "critical": "bold red"}


def plain(shown: RankView) -> str:
    """One line."""
    return "; ".join([*_progress(shown), f"{_memory(shown)} on {_whose(shown)}", _forecast(shown)])


def lines(shown: RankView, columns: int, *, in_colour: bool) -> list[str]:
    """HEIGHT lines of at most `columns` characters, control sequences for colour aside."""
    from rich.console import Console
    from rich.progress_bar import ProgressBar
    from rich.rule import Rule
    from rich.table import Table
    from rich.text import Text

    console = Console(
        file=io.StringIO(),
        force_terminal=True,
        width=columns,
        color_system="standard" if in_colour else None,
    )
    style = _STYLES.get(str(shown.forecast.get("level", "ok")), "")
    memory = _memory(shown)
    bar = Table.grid(padding=(0, 1))
    bar.add_column(width=max(8, min(30, columns - len(memory) - 2)))
    bar.add_column(no_wrap=True, overflow="ellipsis")
    bar.add_row(ProgressBar(total=1.0, completed=shown.share, complete_style=style), Text(memory))
    content: list[Any] = [
        Rule(f"memagent · {shown.run_id} · {_whose(shown)}", align="left", style="dim"),
        Text(" · ".join(_progress(shown)), no_wrap=True, overflow="ellipsis"),
        bar,
        Text(_forecast(shown), style=style, no_wrap=True, overflow="ellipsis"),
    ]
    with console.capture() as captured:
        for one in content:
            console.print(one)
    return [*captured.get().splitlines(), *[""] * HEIGHT][:HEIGHT]


def _progress(shown: RankView) -> list[str]:
    step = f"step {shown.step:,}" + (f" of {shown.total_steps:,}" if shown.total_steps else "")
    pace = f"{shown.pace:,.3g} steps/s" if shown.pace else "–"
    left = [f"{format_duration(shown.left_s)} left"] if shown.left_s is not None else []
    return [step, pace, *left]


def _whose(shown: RankView) -> str:
    return (
        shown.device if shown.ranks == 1 else f"{shown.device}, rank {shown.rank} of {shown.ranks}"
    )


def _memory(shown: RankView) -> str:
    if not shown.limit_bytes:
        return f"{format_bytes(shown.used_bytes)} used, peak {format_bytes(shown.peak_bytes)}"
    headroom = max(0, shown.limit_bytes - shown.peak_bytes)
    used = (
        f"{format_bytes(shown.used_bytes)} of {format_bytes(shown.limit_bytes)} ({shown.share:.0%})"
    )
    return f"{used}, peak {format_bytes(shown.peak_bytes)}, headroom {format_bytes(headroom)}"


def _forecast(shown: RankView) -> str:
    found = shown.forecast
    level = str(found.get("level", "ok"))
    if level == "ok":
        return "forecast: ok"
    when, eta = "", found.get("eta_step")
    if eta is not None:
        when = f" in about {max(0, round(eta - shown.step)):,} steps"
        when += f" ({format_duration(found['eta_s'])})" if found.get("eta_s") is not None else ""
    cause = f"; cause: {found['cause']}" if found.get("cause") else ""
    return f"forecast: {level}: out of memory{when}, {found.get('oom_probability', 0.0):.0%} likely{cause}"
