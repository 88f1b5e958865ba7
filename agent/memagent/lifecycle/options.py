"""The arguments of `attach` other than settings, and their validation."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from memagent.errors import SettingError
from memagent.record.git import ChangeCheck
from memagent.wire.messages import Command, Risk

if TYPE_CHECKING:
    from memagent.preflight import PreflightRequest

MAX_TAGS = 100
MAX_TAG_LENGTH = 200
"""Limits of the server: see `RunStart`."""


@dataclass(frozen=True)
class AttachOptions:
    """See `memagent.attach`."""

    config: Any = None
    tags: Sequence[str] = ()
    total_steps: int | None = None
    phases: bool = True
    predict: bool = True
    preflight: PreflightRequest | None = None
    on_risk: Callable[[Risk], None] | None = None
    on_command: Callable[[Command], object] | None = None
    console: bool = False
    mirror: tuple[Any, ...] | None = None
    """The result of `memagent.mirror.parse_mirror`; None: as the settings say."""
    automatic: bool = False
    """Started by `memagent run`; gives way to the script's own attach."""
    has_past_peaks: bool = False
    """Count what the process used before the run, too."""
    is_announced: bool = False
    """A run of this process has printed where its id is recorded."""
    changes: ChangeCheck | None = None
    """The check of the script's repository, which git makes meanwhile."""


def make_options(**options: Any) -> AttachOptions:
    """Validate options. Raises SettingError for an unknown name or a malformed value."""
    unknown = sorted(set(options) - {field.name for field in fields(AttachOptions)})
    if unknown:
        raise SettingError(f"Unknown options: {', '.join(unknown)}. See memagent.attach.")
    mirror = options.get("mirror")
    if mirror is not None:
        from memagent.mirror.trackers import parse_mirror

        mirror = parse_mirror(mirror)
    preflight = options.get("preflight")
    if preflight is not None:
        from memagent.preflight import parse_preflight

        preflight = parse_preflight(preflight)
    validated = {
        "total_steps": _validate_total_steps(options.get("total_steps")),
        "tags": _validate_tags(options.get("tags")),
        "preflight": preflight,
        "mirror": mirror,
    }
    return AttachOptions(**{**options, **validated})


def _validate_total_steps(value: Any) -> int | None:
    """Return an int: scripts pass `len(loader) * epochs / accumulation` or numbers of numpy."""
    if value is None:
        return None
    try:
        steps: int = math.ceil(value)
    except (TypeError, ValueError, OverflowError):
        steps = 0
    if not 0 < steps < 2**53:
        raise SettingError(
            f"total_steps must be the number of planned optimizer steps, 1 or more; got {value!r}."
        )
    return steps


def _validate_tags(value: Any) -> list[str]:
    if value is not None and (isinstance(value, str) or not isinstance(value, Iterable)):
        raise SettingError(f"tags must be a list of strings, got {value!r}.")
    tags = [str(tag) for tag in value or ()]
    if len(tags) > MAX_TAGS:
        raise SettingError(
            f"Too many tags ({len(tags)}): at most {MAX_TAGS}, each up to {MAX_TAG_LENGTH} "
            "characters."
        )
    longest = max(tags, key=len, default="")
    if len(longest) > MAX_TAG_LENGTH:
        raise SettingError(
            f"Tag {longest[:40]!r}... is too long ({len(longest)} characters): "
            f"at most {MAX_TAG_LENGTH}."
        )
    return tags
