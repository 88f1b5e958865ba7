"""Upload runs that were recorded without a server, or while it was down.

It's safe to interrupt and to repeat: every sample arrives once. Files of running processes are
skipped.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path

from memagent.cli import say
from memagent.delivery.api_client import HttpTransport
from memagent.delivery.upload import SYNCED, Upload, find_files, upload
from memagent.errors import SettingError
from memagent.live.progress import Progress
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
    parser.add_argument("--dry-run", action="store_true", help="only show what would be uploaded")
    parser.add_argument(
        "--keep",
        action="store_true",
        help=f"rename uploaded files to NAME{SYNCED} instead of removing them",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(arguments: argparse.Namespace) -> int:
    settings = Settings.from_environ(server=arguments.server, token=arguments.token)
    if settings.server is None and not arguments.dry_run:
        raise SettingError("No server to upload to: give --server URL or set MEMAGENT_SERVER.")
    if missing := [str(path) for path in arguments.paths if not path.exists()]:
        raise SettingError(f"{missing[0]} does not exist")
    files = find_files(arguments.paths or [settings.directory])
    uploads = _upload_all(files, settings, dry_run=arguments.dry_run, keep=arguments.keep)
    if arguments.json:
        print(
            json.dumps(
                {"server": settings.server, "files": [asdict(file) for file in uploads]},
                indent=2,
                default=str,
            )
        )
    else:
        _print(uploads, dry_run=arguments.dry_run)
    if not uploads:
        say(f"nothing to upload in {', '.join(map(str, arguments.paths)) or settings.directory}")
    failures = [file for file in uploads if _is_failure(file, dry_run=arguments.dry_run)]
    for file in failures:
        _print_reason(file)
    return 1 if failures else 0


def _upload_all(
    files: list[Upload], settings: Settings, *, dry_run: bool, keep: bool
) -> list[Upload]:
    """Upload each file in turn; stop if the server is unreachable."""
    if dry_run or settings.server is None:
        return [upload(file, None) for file in files]
    transport = HttpTransport(settings.server, settings.token, replayed=True)
    total = sum(file.path.stat().st_size for file in files if file.path.exists())
    done = 0
    try:
        with Progress() as progress:
            for number, file in enumerate(files, 1):
                what = f"file {number} of {len(files)}"

                def advance(size_bytes: int, what: str = what) -> None:
                    nonlocal done
                    done += size_bytes
                    progress.advance(done, total, what)

                advance(0)
                if upload(file, transport, keep=keep, advance=advance).outcome == "waiting":
                    break
    finally:
        transport.close()
    return files


def _is_failure(file: Upload, *, dry_run: bool) -> bool:
    return file.outcome == "unreadable" if dry_run else file.outcome in _FAILURES


def _print(uploads: list[Upload], *, dry_run: bool) -> None:
    for file in uploads:
        print(f"{_name(file)}: {_what(file, dry_run=dry_run)}")
        for note in [] if _is_failure(file, dry_run=dry_run) else file.notes:
            print(f"  {note}")


def _print_reason(file: Upload) -> None:
    """Print the first reason; files that only wait for an earlier file have none."""
    first, *others = file.notes or [""]
    if first:
        say(f"{_name(file)}: {first}{f' (and {len(others)} more: see --json)' if others else ''}")


def _name(file: Upload) -> str:
    return str(file.path) if file.run_id is None else f"run {file.run_id}, rank {file.rank}"


def _what(file: Upload, *, dry_run: bool) -> str:
    end = file.status or "no end recorded"
    if file.outcome == "uploaded":
        return f"{file.samples} samples uploaded ({end})"
    if file.outcome == "waiting" and dry_run:
        return f"{file.samples} samples would be uploaded ({end})"
    if file.outcome == "refused":
        return f"the server refused {file.refused} of {file.parcels} parcels; kept as {file.path}"
    states = {
        "waiting": "not uploaded yet, run this again",
        "in_use": "skipped",
        "unreadable": "cannot be read",
    }
    return f"{states[file.outcome]}; kept as {file.path}"
