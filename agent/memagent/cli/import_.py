"""Import runs that TensorBoard, W&B or MLflow recorded: scalars, config, memory of devices.

PATH is a folder of event files, an offline folder of W&B, an `mlruns` folder or MLflow's SQLite
database. Its tracker is recognized by the files, or named before PATH. Nothing there is changed.
A run that is imported again gets what is new.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from memagent.cli import say
from memagent.delivery.api_client import HttpTransport
from memagent.delivery.envelope import Envelope
from memagent.delivery.upload import TIMEOUT_S, Upload, find_files, upload
from memagent.errors import DeliveryError, MemagentError, SettingError
from memagent.importer.run_folder import ImportPlan, RunFolder
from memagent.importer.run_record import run_id_of
from memagent.importer.source_run import SourceRun
from memagent.importer.sources import SOURCES, find_sources, parse_path
from memagent.live.progress import Progress
from memagent.settings import Settings
from memagent.wire.messages import StartReply

_FAILURES = {
    "waiting": "not uploaded yet, run `memagent sync`",
    "refused": "the server refused it",
    "in_use": "another upload has it",
    "unreadable": "cannot be read",
}
"""Sentences by the outcome of an upload that isn't complete."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "paths",
        nargs="+",
        metavar="PATH",
        help=f"files or folders; may begin with their tracker: {', '.join(SOURCES)}",
    )
    parser.add_argument("--project", help="project of the runs; default: that of the source")
    parser.add_argument("--server", help="address of the server; default MEMAGENT_SERVER")
    parser.add_argument("--token", help="access token with scope ingest; default MEMAGENT_TOKEN")
    parser.add_argument(
        "--to", type=Path, metavar="FOLDER", help="write run files there; default MEMAGENT_DIR"
    )
    parser.add_argument("--dry-run", action="store_true", help="only show what would be imported")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


@dataclass
class ImportResult:
    """Result for one run; `outcome` as of `memagent sync`, or `recorded` or `known`.

    points, readings: of the source; new_points, new_readings: of those, what this import adds.
    """

    run_id: str
    source: str
    name: str | None
    project: str
    outcome: str
    status: str | None
    path: str
    scalars: int
    points: int
    readings: int
    new_points: int
    new_readings: int
    skipped: dict[str, int]
    renamed: dict[str, str]
    notes: list[str] = field(default_factory=list)


def run(arguments: argparse.Namespace) -> int:
    if arguments.server and arguments.to:
        raise SettingError("Give --server or --to, not both.")
    settings = Settings.from_environ(
        server=arguments.server, token=arguments.token, project=arguments.project
    )
    names, paths = _parse_sources(arguments.paths)
    problems: list[str] = []
    results: list[ImportResult] = []
    target = _Target(settings, arguments.to, is_dry=arguments.dry_run)
    try:
        with Progress() as progress:
            progress.show(_printable(f"reading {', '.join(map(str, paths))}"))
            for source_run in _read(names, paths, problems):
                progress.show(_printable(f"run {len(results) + 1:,}: {source_run.name}"))
                try:
                    results.append(target.put(source_run, arguments.project))
                except MemagentError as error:
                    problems.append(f"{source_run.place}: {error}")
    finally:
        target.close()
    if arguments.json:
        runs = [vars(result) for result in results]
        print(json.dumps({"to": target.place, "runs": runs, "problems": problems}, indent=2))
    else:
        _print(results, target.place, is_dry=arguments.dry_run)
    failures = [_failure(result) for result in results if result.outcome in _FAILURES]
    for problem in [*problems, *failures]:
        say(_printable(problem))
    if not results and not problems:
        say(f"no run of {', '.join(names or SOURCES)} in {', '.join(map(str, paths))}")
    return 1 if problems or failures or not results else 0


class _Target:
    """A folder of run files for imported runs, and the server that they are uploaded to, if any."""

    def __init__(self, settings: Settings, folder: Path | None, *, is_dry: bool) -> None:
        self._folder = RunFolder(folder or settings.directory)
        self._default_project = settings.project
        self._is_dry = is_dry
        self._is_away = False
        self._transport = None
        server = settings.server if folder is None else None
        if server is not None and not is_dry:
            self._transport = HttpTransport(server, settings.token, replayed=True)
        self.place = str(server or folder or settings.directory)

    def put(self, run: SourceRun, project: str | None) -> ImportResult:
        """Write a run's file and upload it. Raises MemagentError if it can't be written."""
        project = project or run.project or self._default_project
        next_seq = self._next_seq if self._transport is not None else None
        plan = self._folder.plan(run, project, next_seq)
        is_new = self._is_dry or self._folder.write(run, project, plan)
        result = _result(run, project, plan, is_new=is_new)
        if self._transport is not None and (is_new or plan.path.exists()):
            file = self._upload(plan.path)
            result.outcome = file.outcome
            result.path = str(file.path)
            result.notes += file.notes
        return result

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def _next_seq(self, start: Envelope) -> int | None:
        if self._transport is None or self._is_away:
            return None
        try:
            reply = self._transport.deliver(start, timeout_s=TIMEOUT_S)
        except DeliveryError:
            return None  # the upload says why
        return reply.next_seq if isinstance(reply, StartReply) else None

    def _upload(self, path: Path) -> Upload:
        (file,) = find_files([path])
        if not self._is_away:
            upload(file, self._transport)
            self._is_away = file.outcome == "waiting"
        return file


def _parse_sources(texts: Sequence[str]) -> tuple[list[str], list[Path]]:
    """Return the named tracker, if any, and the paths. A single word is a path."""
    if len(texts) > 1 and texts[0] in SOURCES:
        return [texts[0]], [parse_path(text) for text in texts[1:]]
    return [], [parse_path(text) for text in texts]


def _read(names: Sequence[str], paths: Sequence[Path], problems: list[str]) -> Iterator[SourceRun]:
    for path in paths:
        for name in names or find_sources(path):
            try:
                yield from SOURCES[name].read_runs(path, problems)
            except MemagentError as error:
                problems.append(str(error))


def _result(run: SourceRun, project: str, plan: ImportPlan, *, is_new: bool) -> ImportResult:
    known_points, known_readings = plan.known.counts() if plan.known else (0, 0)
    new_points, new_readings = len(run.scalars) - known_points, len(run.devices) - known_readings
    is_known = plan.known is not None and not new_points and not new_readings
    is_ended = is_known and plan.known is not None and plan.known.status == run.status
    return ImportResult(
        run_id=run_id_of(run),
        source=run.source,
        name=run.name,
        project=project,
        outcome="recorded" if is_new and not is_ended else "known",
        status=run.status,
        path=str(plan.path),
        scalars=len(run.scalars.names),
        points=len(run.scalars),
        readings=len(run.devices),
        new_points=new_points,
        new_readings=new_readings,
        skipped=dict(run.left_out()),
        renamed=run.scalars.renamed,
        notes=[*run.notes, *([f"the run {plan.note}"] if plan.note else [])],
    )


def _failure(result: ImportResult) -> str:
    reason = f": {result.notes[-1]}" if result.notes else ""
    what = _FAILURES[result.outcome]
    return f"run {result.run_id}: {what}; kept as {result.path}{reason}"


def _print(results: Sequence[ImportResult], place: str, *, is_dry: bool) -> None:
    for result in results:
        print(_printable(f"{result.run_id} {result.project}/{result.name}: {_counts(result)}"))
        if result.skipped:
            kinds = (f"{count:,} {kind}" for kind, count in sorted(result.skipped.items()))
            print(_printable(f"  left out: {', '.join(kinds)}"))
        if result.renamed:
            pairs = [f"{name!r:.80} as {column!r}" for name, column in result.renamed.items()]
            more = f" and {len(pairs) - 3:,} more" if len(pairs) > 3 else ""
            print(_printable(f"  renamed: {', '.join(pairs[:3])}{more}"))
        for note in [] if result.outcome in _FAILURES else result.notes:
            print(_printable(f"  {note}"))
    if results:
        stored = sum(result.outcome not in _FAILURES for result in results)
        verb = "would be imported to" if is_dry else "imported to"
        print(f"{stored:,} of {len(results):,} runs {verb} {place}")


def _counts(result: ImportResult) -> str:
    counts = f"{result.points:,} points of {result.scalars:,} scalars"
    if result.readings:
        counts += f", {result.readings:,} readings of devices"
    if result.outcome == "known":
        counts += ", nothing new"
    elif (result.new_points, result.new_readings) != (result.points, result.readings):
        counts += f", new: {result.new_points:,} and {result.new_readings:,}"
    return f"{counts} ({result.status or 'no end recorded'})"


def _printable(text: str) -> str:
    """Return a text without control characters: names may come from anyone."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)
