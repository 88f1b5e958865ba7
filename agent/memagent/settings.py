"""What the agent can be told, by argument to `attach()` or environment. Arguments beat environment beat defaults."""

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

_TRUE, _FALSE = ("1", "true", "yes", "on"), ("0", "false", "no", "off")
Text = TypeVar("Text", str, str | None)
_RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True)
class Settings:
    """Every setting of the agent. `server` None means: record to a file below `directory`. The token is left out of repr."""

    server: str | None = None
    token: str | None = field(default=None, repr=False)
    project: str = "default"
    name: str | None = None
    run_id: str | None = None
    directory: Path = Path("memagent-runs")
    every: int = 1
    limit_bytes: int | None = None
    mirror: str | None = None
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
        """Settings from MEMAGENT_ variables, overridden by the arguments given. Raises SettingError that names the one at fault."""
        given = read_settings((*AGENT_SETTINGS, *INTERNAL_SETTINGS), environ)
        limit = limit_bytes if limit_bytes is not None else given.get("MEMAGENT_LIMIT_BYTES")
        return cls(
            server=_server(server or given.get("MEMAGENT_SERVER")),
            token=token or given.get("MEMAGENT_TOKEN"),
            project=_label("project", project or given.get("MEMAGENT_PROJECT", "default")),
            name=_label("name", name or given.get("MEMAGENT_NAME") or None),
            run_id=_run_id(run_id or given.get("MEMAGENT_RUN_ID")),
            directory=_directory(given.get("MEMAGENT_DIR")) or default_directory(environ),
            every=_every(every if every is not None else given.get("MEMAGENT_EVERY", 1)),
            limit_bytes=None if limit is None else parse_bytes(limit),
            mirror=given.get("MEMAGENT_MIRROR") or None,
            disabled=_flag("MEMAGENT_DISABLED", given),
            raise_errors=_flag("MEMAGENT_RAISE", given),
            live=given.get("MEMAGENT_LIVE") or None,
        )


def default_directory(environ: Mapping[str, str]) -> Path:
    """Where runs without a server are recorded: XDG_DATA_HOME/memagent/runs, or ~/.local/share/memagent/runs. A user without a home, as
    containers have them, gets a folder of its own among the temporary files."""
    try:
        base = environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    except RuntimeError:
        return Path(tempfile.gettempdir()) / f"memagent-{os.getuid()}" / "runs"
    return Path(base) / "memagent" / "runs"


def _directory(text: str | None) -> Path | None:
    """Absolute: the script may change its working directory later. `~` is for those whose shell has not replaced it."""
    if text is None:
        return None
    try:
        return Path(text).expanduser().absolute()
    except (RuntimeError, OSError) as error:
        raise SettingError(f"MEMAGENT_DIR is {text!r}, which cannot be found: {error}") from error


def _server(text: str | None) -> str | None:
    if text is not None and not re.match(r"https?://[^/\s]+", text):
        raise SettingError(
            f"the server is {text!r}: write its address, as in MEMAGENT_SERVER=http://127.0.0.1:8420"
        )
    return text.rstrip("/") if text else None


def _label(what: str, text: Text) -> Text:
    if text is not None and not isinstance(text, str):
        raise SettingError(f"the {what} is {text!r}: give a text")
    if text is not None and not 0 < len(text) <= 200:
        raise SettingError(f"the {what} must have 1 to 200 characters, this one has {len(text)}")
    return text


def _run_id(text: str | None) -> str | None:
    if text is not None and not _RUN_ID.fullmatch(str(text)):
        raise SettingError(
            f"the run id is {text!r}: use 1 to 64 of A-Z a-z 0-9 . _ -, starting with a letter or digit"
        )
    return None if text is None else str(text)


def _every(value: int | str) -> int:
    try:
        every = int(value)
    except ValueError:
        every = 0
    if every < 1:
        raise SettingError(f"MEMAGENT_EVERY is {value!r}: write a whole number of steps, 1 or more")
    return every


def _flag(name: str, given: Mapping[str, str]) -> bool:
    text = given.get(name, "0").lower()
    if text not in _TRUE + _FALSE:
        raise SettingError(f"{name} is {text!r}: write 1 or 0")
    return text in _TRUE
