"""Write all samples of a run as CSV or Parquet: from a server, or without one from the database of MEMAGENT_DATABASE_URL."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

from memagent.cli.progress import Progress
from memagent.delivery.download import download
from memagent.errors import MemagentError, SettingError
from memagent.settings import Settings
from memagent.units import format_bytes

_FORMATS = ("csv", "parquet")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run_id", metavar="RUN_ID")
    parser.add_argument("--format", choices=_FORMATS, help="default: as FILE is called, else csv")
    parser.add_argument(
        "-o", "--output", metavar="FILE", type=Path, help="write there, not to stdout"
    )
    parser.add_argument(
        "--server",
        help="address of the server; default MEMAGENT_SERVER, without either the database",
    )
    parser.add_argument("--token", help="access token with scope read; default MEMAGENT_TOKEN")


def run(arguments: argparse.Namespace) -> int:
    path: Path | None = arguments.output
    form = arguments.format or (
        "parquet" if path is not None and path.suffix == ".parquet" else "csv"
    )
    if path is None and form == "parquet" and sys.stdout.isatty():
        raise SettingError("Parquet is nothing for a terminal: name a file with -o")
    settings = Settings.from_environ(server=arguments.server, token=arguments.token)
    if settings.server is not None:
        asked = f"/api/v1/runs/{quote(arguments.run_id, safe='')}/export?format={form}"
        _write(download(settings.server, asked, token=settings.token), path)
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
                raise MemagentError(f"there is no run {run_id!r} in this database")
        _write(export(database, run_id, "parquet" if form == "parquet" else "csv"), path)
    finally:
        database.close()


def _write(pieces: Iterator[bytes], path: Path | None) -> None:
    """A file is there when it is whole: it is written beside its place first."""
    if path is None:
        for piece in pieces:
            sys.stdout.buffer.write(piece)
        sys.stdout.buffer.flush()
        return
    partly = path.with_name(f"{path.name}.part")
    try:
        with partly.open("wb") as file:
            for piece in _shown(pieces, path.name):
                file.write(piece)
        partly.replace(path)
    except OSError as error:
        raise MemagentError(f"{path} cannot be written: {error.strerror}") from error
    finally:
        partly.unlink(missing_ok=True)


def _shown(pieces: Iterator[bytes], name: str) -> Iterator[bytes]:
    """The pieces, while progress says how much has been written; how much it will be is not known before it is read."""
    written = 0
    with Progress() as progress:
        for piece in pieces:
            yield piece
            written += len(piece)
            progress.tell(f"{name}: {format_bytes(written)}")
