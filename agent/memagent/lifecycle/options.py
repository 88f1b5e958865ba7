"""What `attach` was told beyond the settings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from memagent.preflight import Request
from memagent.wire.messages import Risk


@dataclass(frozen=True)
class AttachOptions:
    """See `memagent.attach`."""

    config: Any = None
    tags: Sequence[str] = ()
    total_steps: int | None = None
    phases: bool = True
    predict: bool = True
    preflight: Request | None = None
    on_risk: Callable[[Risk], None] | None = None
    mirror: tuple[Any, ...] | None = None
    """As `memagent.mirror.requested` gives it; None: what the settings say."""
    automatic: bool = False
    """Begun by `memagent run`; gives way to the script's own attach."""
