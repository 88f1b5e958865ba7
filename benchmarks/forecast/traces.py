"""Trace of a run as a detector sees it, and how the run ended."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from memagent.forecast.predecessor import Predecessor
from memagent.forecast.types import Growing


@dataclass(frozen=True)
class Trace:
    """A trace. `columns` are samples as `memagent.forecast.replay_columns` takes them, one row per
    step. Sizes in bytes.

    `death` is the step that ran out of memory, one after the last row, or None for a run that
    survived. `trending` runs die of growth. `options` go to the forecaster. `garbage` is what a
    garbage collection would free at each row. `grows` is what the leak finder would find.
    """

    family: str
    limit_bytes: int
    columns: dict[str, list[Any]]
    death: int | None
    cause: str | None = None
    trending: bool = False
    options: dict[str, Any] = field(default_factory=dict)
    garbage: list[int] | None = None
    grows: Growing | None = None
    predecessor: Predecessor | None = None
    """The last run of the same program, if any."""

    def with_room(self, factor: float) -> Trace:
        """Return the run under limits that are so many times as large."""
        options = dict(self.options)
        if options.get("host_limit_bytes"):
            options["host_limit_bytes"] = int(factor * options["host_limit_bytes"])
        return replace(self, limit_bytes=int(factor * self.limit_bytes), options=options)

    @property
    def planned(self) -> int | None:
        return self.options.get("total_steps")


@dataclass(frozen=True)
class Verdict:
    """Verdict of the leak finder on the growth at a row. `rest`: of a buffer, what it says that is
    missing until it's full, over what really is.
    """

    row: int
    grows: Growing | None
    rest: float | None = None


@dataclass(frozen=True)
class Alarm:
    """First page of a detector."""

    step: int
    eta_step: float | None = None
    eta_low: float | None = None
    eta_high: float | None = None
    cause: str | None = None
