"""Settings of the agent: arguments override the environment, which overrides defaults."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from memagent.environment import AGENT_SETTINGS, INTERNAL_SETTINGS, read_settings
from memagent.errors import SettingError
from memagent.units import parse_bytes

MAX_LABEL_LENGTH = 200
"""Characters of a project or a name."""
_TRUE = ("1", "true", "yes", "on")
_FALSE = ("0", "false", "no", "off")
_RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
OptionalText = TypeVar("OptionalText", str, str | None)


@dataclass(frozen=True)
class Settings:
    """Every setting of the agent.

    Without a `server` a run is recorded to a file in `directory`. The token is not in the repr.
    """

    server: str | None = None
    token: str | None = field(default=None, repr=False)
    project: str = "default"
    name: str | None = None
    run_id: str | None = None
    directory: Path = Path("memagent-runs")
    every: int = 1
    limit_bytes: int | None = None
    page_cost: float | None = None
    mirror: str | None = None
    source: bool = True
    console: bool | None = None
    """None: what `memagent run` or the script decides."""
    disabled: bool = False
    raise_errors: bool = False
    live: str | None = None

    @classmethod
    def from_environ(
        cls,
        environ: Mapping[str, str] = os.environ,
        *,
        server: str | None = None,
        token: str | None = None,
        project: str | None = None,
        name: str | None = None,
        run_id: str | None = None,
        every: int | None = None,
        limit_bytes: int | str | None = None,
    ) -> Settings:
        """Read MEMAGENT_ variables; arguments override them.

        Raises SettingError that names the invalid setting.
        """
        values = read_settings((*AGENT_SETTINGS, *INTERNAL_SETTINGS), environ)
        limit = limit_bytes if limit_bytes is not None else values.get("MEMAGENT_LIMIT_BYTES")
        return cls(
            server=_parse_server(server or values.get("MEMAGENT_SERVER")),
            token=token or values.get("MEMAGENT_TOKEN"),
            project=_check_label("project", project or values.get("MEMAGENT_PROJECT", "default")),
            name=_check_label("name", name or values.get("MEMAGENT_NAME") or None),
            run_id=_check_run_id(run_id or values.get("MEMAGENT_RUN_ID")),
            directory=_parse_directory(values.get("MEMAGENT_DIR")) or default_directory(environ),
            every=_parse_every(every if every is not None else values.get("MEMAGENT_EVERY", 1)),
            limit_bytes=None if limit is None else parse_bytes(limit),
            page_cost=_parse_cost("MEMAGENT_PAGE_COST", values),
            mirror=values.get("MEMAGENT_MIRROR") or None,
            source=_parse_flag("MEMAGENT_SOURCE", values, default="1"),
            console=_parse_flag("MEMAGENT_CONSOLE", values)
            if "MEMAGENT_CONSOLE" in values
            else None,
            disabled=_parse_flag("MEMAGENT_DISABLED", values),
            raise_errors=_parse_flag("MEMAGENT_RAISE", values),
            live=values.get("MEMAGENT_LIVE") or None,
        )


def default_directory(environ: Mapping[str, str]) -> Path:
    """Return XDG_DATA_HOME/memagent/runs, or ~/.local/share/memagent/runs.

    For a user without a home directory, as in containers, return a temporary directory.
    """
    try:
        base = environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    except RuntimeError:
        return Path(tempfile.gettempdir()) / f"memagent-{os.getuid()}" / "runs"
    return Path(base) / "memagent" / "runs"


def _parse_directory(text: str | None) -> Path | None:
    """Return an absolute path: the script may change its working directory later."""
    if text is None:
        return None
    try:
        return Path(text).expanduser().absolute()
    except (RuntimeError, OSError) as error:
        raise SettingError(f"MEMAGENT_DIR is {text!r}, which cannot be found: {error}") from error


def _parse_server(text: str | None) -> str | None:
    if text is not None and not re.match(r"https?://[^/\s]+", text):
        raise SettingError(
            f"Invalid server {text!r}: write a URL, as in MEMAGENT_SERVER=http://127.0.0.1:8420."
        )
    return text.rstrip("/") if text else None


def _check_label(setting: str, text: OptionalText) -> OptionalText:
    if text is not None and not isinstance(text, str):
        raise SettingError(f"{setting} must be a string, got {text!r}.")
    if text is not None and not 0 < len(text) <= MAX_LABEL_LENGTH:
        raise SettingError(f"{setting} has {len(text)} characters: use 1 to {MAX_LABEL_LENGTH}.")
    return text


def _check_run_id(text: str | None) -> str | None:
    if text is not None and not _RUN_ID.fullmatch(str(text)):
        raise SettingError(
            f"Invalid run id {text!r}: use 1 to 64 of A-Z a-z 0-9 . _ -, starting with a letter or "
            "digit."
        )
    return None if text is None else str(text)


def _parse_every(value: int | str) -> int:
    try:
        every = int(value)
    except ValueError:
        every = 0
    if every < 1:
        raise SettingError(
            f"Invalid MEMAGENT_EVERY {value!r}: write a whole number of steps, 1 or more."
        )
    return every


def _parse_cost(name: str, values: Mapping[str, str]) -> float | None:
    text = values.get(name)
    if text is None:
        return None
    try:
        cost = float(text)
    except ValueError:
        cost = -1.0
    if not 0 <= cost <= 1:
        raise SettingError(f"Invalid {name} {text!r}: write a share of a lost run's cost, 0 to 1.")
    return cost


def _parse_flag(name: str, values: Mapping[str, str], default: str = "0") -> bool:
    text = values.get(name, default).lower()
    if text not in _TRUE + _FALSE:
        raise SettingError(f"Invalid {name} {text!r}: write 1 or 0.")
    return text in _TRUE
