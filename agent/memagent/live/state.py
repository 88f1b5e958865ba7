"""What is known of a run by now, from what its ranks sent. Pure: messages in, values out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

_SMOOTHING = 0.3
"""Share of the newest measurement in the pace."""


@dataclass(frozen=True)
class RankView:
    """One rank as it is drawn: the device nearest to its limit. Sizes are bytes, `pace` is steps a second."""

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
        """Seconds to the last planned step, at this pace."""
        if not self.total_steps or not self.pace:
            return None
        return max(0, self.total_steps - self.step) / self.pace

    @property
    def share(self) -> float:
        """Used part of the limit, 0 without one."""
        return self.used_bytes / self.limit_bytes if self.limit_bytes else 0.0


@dataclass
class RunState:
    """The newest message of each rank, and the pace of the run."""

    newest: dict[int, Mapping[str, Any]] = field(default_factory=dict)
    pace: float | None = None
    _step: int = 0
    _at_s: float | None = None

    def take(self, message: Mapping[str, Any], now_s: float) -> None:
        """A message, and when it came, on any clock that only goes forward."""
        self.newest[int(message["rank"])] = message
        step = int(message["steps"])
        if self._at_s is None or step < self._step:
            self._step, self._at_s = step, now_s
        elif step > self._step and now_s > self._at_s:
            pace = (step - self._step) / (now_s - self._at_s)
            self.pace = (
                pace if self.pace is None else _SMOOTHING * pace + (1 - _SMOOTHING) * self.pace
            )
            self._step, self._at_s = step, now_s

    def shown(self) -> RankView | None:
        """The rank that is nearest to its limit; None before the first message."""
        ranks = [self._of(message) for message in self.newest.values()]
        return max(
            ranks,
            key=lambda rank: (
                rank.peak_bytes / rank.limit_bytes if rank.limit_bytes else 0.0,
                -rank.rank,
            ),
            default=None,
        )

    def _of(self, message: Mapping[str, Any]) -> RankView:
        forecast = message["forecast"] or {}
        device = next(iter(message["peaks"].values()))
        peak = int(device["peak_allocated_bytes"])
        return RankView(
            run_id=message["run_id"],
            rank=int(message["rank"]),
            ranks=len(self.newest),
            step=max(int(one["steps"]) for one in self.newest.values()),
            total_steps=message["total_steps"],
            pace=self.pace,
            device=device["name"],
            used_bytes=int(forecast.get("used_bytes") or peak),
            peak_bytes=peak,
            limit_bytes=device["limit_bytes"],
            forecast=forecast,
        )
