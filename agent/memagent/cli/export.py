"""Write all samples of a run as CSV or Parquet.

They come from a server, or without one from the database of MEMAGENT_DATABASE_URL."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

from memagent.delivery.api_client import ApiClient
from memagent.errors import MemagentError, SettingError
from memagent.live.progress import Progress
from memagent.settings import Settings
from memagent.units import format_bytes

_FORMATS = ("csv", "parquet")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run_id", metavar="RUN_ID")
    parser.add_argument(
        "--format", choices=_FORMATS, help="default: by the suffix of FILE, else csv"
    )
    parser.add_argument(
        "-o", "--output", metavar="FILE", type=Path, help="write to this file instead of stdout"
    )
    parser.add_argument(
        "--server", help="address of the server; default MEMAGENT_SERVER, else read the database"
    )
    parser.add_argument("--token", help="access token with scope read; default MEMAGENT_TOKEN")


def run(arguments: argparse.Namespace) -> int:
    path: Path | None = arguments.output
    form = arguments.format or (
        "parquet" if path is not None and path.suffix == ".parquet" else "csv"
    )
    if path is None and form == "parquet" and sys.stdout.isatty():
        raise SettingError("Parquet can't be printed on a terminal: name a file with -o.")
    settings = Settings.from_environ(server=arguments.server, token=arguments.token)
    if settings.server is not None:
        path_and_query = f"/api/v1/runs/{quote(arguments.run_id, safe='')}/export?format={form}"
        with closing(ApiClient(settings.server, settings.token)) as client:
            _write(client.download(path_and_query), path)
    else:
        _from_database(arguments.run_id, form, path)
    return 0


def _from_database(run_id: str, form: str, path: Path | None) -> None:
    from memagent_server.settings import Settings as ServerSettings
    from memagent_server.store import migrate
    from memagent_server.store.engine import Database
    from memagent_server.store.export import export
    from memagent_server.store.runs import get_run

    database = Database(ServerSettings.from_environ().database_url)
    try:
        migrate.upgrade(database)
        with database.read() as session:
            if get_run(session, run_id) is None:
                raise MemagentError(f"Run {run_id!r} does not exist in this database.")
        _write(export(database, run_id, "parquet" if form == "parquet" else "csv"), path)
    finally:
        database.close()


def _write(pieces: Iterator[bytes], path: Path | None) -> None:
    """Write to stdout or a file. A file appears under its name only when it's complete."""
    if path is None:
        for piece in pieces:
            sys.stdout.buffer.write(piece)
        sys.stdout.buffer.flush()
        return
    partial = path.with_name(f"{path.name}.part")
    try:
        with partial.open("wb") as file:
            for piece in _with_progress(pieces, path.name):
                file.write(piece)
        partial.replace(path)
    except OSError as error:
        raise MemagentError(f"{path} could not be written: {error.strerror}") from error
    finally:
        partial.unlink(missing_ok=True)


def _with_progress(pieces: Iterator[bytes], name: str) -> Iterator[bytes]:
    """Yield the pieces and show the bytes written. The total isn't known in advance."""
    size_bytes = 0
    with Progress() as progress:
        for piece in pieces:
            yield piece
            size_bytes += len(piece)
            progress.show(f"{name}: {format_bytes(size_bytes)}")
