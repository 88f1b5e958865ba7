"""Where stored runs come from: a server, a database of this machine, or a folder of run files."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote

from memagent.environment import SERVER_SETTINGS, read_settings
from memagent.filters.expression import Expression
from memagent.settings import Settings
from memagent.wire.sample_stream import SampleFrame

Fields = dict[str, Any]
"""An object of the HTTP API (docs/http.md)."""
DATABASE_SCHEMES = ("sqlite", "postgresql")


@dataclass(frozen=True)
class RunSelection:
    """Which runs, in which order, with which columns. `where` is `text` as parsed."""

    project: str | None = None
    status: str | None = None
    tags: Sequence[str] = ()
    q: str | None = None
    text: str | None = None
    where: Expression | None = None
    is_archived: bool = False
    order: str = "-created_at"
    columns: Sequence[str] = ()


@dataclass(frozen=True)
class SampleSelection:
    """Which samples of a run: of devices or of scalars, of some ranks and steps."""

    of_scalars: bool = False
    ranks: Sequence[int] = ()
    first: int | None = None
    last: int | None = None


@dataclass(frozen=True)
class RunsPage:
    """Summaries of runs, and where the next page begins; None after the last."""

    runs: list[Fields] = field(default_factory=list)
    next_cursor: str | None = None


class RunStore(Protocol):
    """What every source answers, in the terms of the HTTP API."""

    @property
    def place(self) -> str: ...
    def page(self, selection: RunSelection, cursor: str | None) -> RunsPage: ...
    def run(self, run_id: str) -> Fields: ...
    def part(self, run_id: str, name: str) -> Fields: ...
    def console(self, run_id: str, rank: int | None) -> Fields: ...
    def frames(self, run_id: str, selection: SampleSelection) -> Iterator[SampleFrame]: ...
    def send(self, method: str, path: str, body: Fields | None = None) -> Fields: ...
    def close(self) -> None: ...


def run_path(run_id: str) -> str:
    """Return the address of a run in the HTTP API."""
    return f"/api/v1/runs/{quote(run_id, safe='')}"


def open_store(source: str | Path | None, token: str | None) -> RunStore:
    """Return the store that a URL or a folder names; without one, that of the settings.

    The settings' server comes first, then their database, then their folder of run files.
    """
    from memagent.api.folder_store import FolderStore
    from memagent.api.http_store import HttpStore, database_api, server_api

    settings = Settings.from_environ(token=token)
    if source is None:
        database = read_settings(SERVER_SETTINGS, os.environ).get("MEMAGENT_DATABASE_URL")
        source = settings.server or database or settings.directory
    text = str(source)
    if text.startswith(("http://", "https://")):
        server = Settings.from_environ(server=text, token=token)
        return HttpStore(text, server_api(str(server.server), server.token))
    if text.partition(":")[0].partition("+")[0] in DATABASE_SCHEMES and ":" in text:
        return HttpStore(text, database_api(text))
    return FolderStore(Path(source).expanduser())
