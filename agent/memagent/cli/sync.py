"""Upload runs that were recorded without a server, and what was left over when the server was away or the process was killed. Safe to
interrupt and to repeat: every sample arrives once. A file whose process still runs is left alone."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path

from memagent.cli import say
from memagent.cli.progress import Progress
from memagent.delivery.transport import HttpTransport
from memagent.delivery.upload import SYNCED, Upload, find_files, upload
from memagent.errors import SettingError
from memagent.settings import Settings

_FAILURES = ("waiting", "refused", "unreadable")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "paths",
        nargs="*",
        type=Path,
        metavar="PATH",
        help="run files or folders; default MEMAGENT_DIR",
    )
    parser.add_argument("--server", help="address of the server; default MEMAGENT_SERVER")
    parser.add_argument("--token", help="access token with scope ingest; default MEMAGENT_TOKEN")
    parser.add_argument("--dry-run", action="store_true", help="only say what would be uploaded")
    parser.add_argument(
        "--keep",
        action="store_true",
        help=f"rename uploaded files to NAME{SYNCED} and do not remove them",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(arguments: argparse.Namespace) -> int:
    settings = Settings.from_environ(server=arguments.server, token=arguments.token)
    if settings.server is None and not arguments.dry_run:
        raise SettingError(
            "there is no server to upload to: give --server URL or set MEMAGENT_SERVER"
        )
    if missing := [str(path) for path in arguments.paths if not path.exists()]:
        raise SettingError(f"there is no {missing[0]}")
    found = find_files(arguments.paths or [settings.directory])
    uploads = _upload_all(found, settings, dry_run=arguments.dry_run, keep=arguments.keep)
    if arguments.json:
        print(
            json.dumps(
                {"server": settings.server, "files": [asdict(one) for one in uploads]},
                indent=2,
                default=str,
            )
        )
    else:
        _print(uploads, dry_run=arguments.dry_run)
    if not uploads:
        say(
            f"nothing waits to be uploaded in {', '.join(map(str, arguments.paths)) or settings.directory}"
        )
    failures = [one for one in uploads if _is_failure(one, dry_run=arguments.dry_run)]
    for one in failures:
        _say_why(one)
    return 1 if failures else 0


def _upload_all(
    found: list[Upload], settings: Settings, *, dry_run: bool, keep: bool
) -> list[Upload]:
    """Each file in turn; when the server is away the rest waits, too."""
    if dry_run or settings.server is None:
        return [upload(one, None) for one in found]
    transport = HttpTransport(settings.server, settings.token, replayed=True)
    total = sum(one.path.stat().st_size for one in found if one.path.exists())
    done = 0
    try:
        with Progress() as progress:
            for number, one in enumerate(found, 1):
                what = f"file {number} of {len(found)}"

                def advance(size_bytes: int, what: str = what) -> None:
                    nonlocal done
                    done += size_bytes
                    progress.advance(done, total, what)

                advance(0)
                if upload(one, transport, keep=keep, advance=advance).outcome == "waiting":
                    break
    finally:
        transport.close()
    return found


def _is_failure(one: Upload, *, dry_run: bool) -> bool:
    return one.outcome == "unreadable" if dry_run else one.outcome in _FAILURES


def _print(uploads: list[Upload], *, dry_run: bool) -> None:
    for one in uploads:
        print(f"{_name(one)}: {_what(one, dry_run=dry_run)}")
        for note in [] if _is_failure(one, dry_run=dry_run) else one.notes:
            print(f"  {note}")


def _say_why(one: Upload) -> None:
    """Nothing of those that wait because the one before them did."""
    first, *others = one.notes or [""]
    if first:
        say(f"{_name(one)}: {first}{f' (and {len(others)} more: see --json)' if others else ''}")


def _name(one: Upload) -> str:
    return str(one.path) if one.run_id is None else f"run {one.run_id}, rank {one.rank}"


def _what(one: Upload, *, dry_run: bool) -> str:
    end = one.status or "never said how it ended"
    if one.outcome == "uploaded":
        return f"{one.samples} samples uploaded ({end})"
    if one.outcome == "waiting" and dry_run:
        return f"{one.samples} samples would be uploaded ({end})"
    if one.outcome == "refused":
        return f"the server refused {one.refused} of {one.parcels} parcels; kept as {one.path}"
    said = {
        "waiting": "not uploaded yet, run this again",
        "in_use": "left alone",
        "unreadable": "cannot be read",
    }
    return f"{said[one.outcome]}; kept as {one.path}"
