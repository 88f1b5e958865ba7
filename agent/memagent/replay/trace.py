"""What a forecaster needs of a recorded run of one rank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from memagent.forecast import Hints
from memagent.wire.columns import Value
from memagent.wire.messages import Device


@dataclass(frozen=True)
class Piece:
    """Consecutive samples of one device, and what was known ahead when they came."""

    device: str
    columns: Mapping[str, Sequence[Value]]
    hints: Hints


@dataclass(frozen=True)
class Trace:
    """`pieces` in the order in which they came; the model trains on the first of `devices`. `status`: how the run
    ended, if it said so."""

    run_id: str
    rank: int
    devices: Sequence[Device]
    pieces: Sequence[Piece] = field(repr=False)
    status: str | None = None
    oom_step: int | None = None
