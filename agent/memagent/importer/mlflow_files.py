"""Runs of MLflow's folder `mlruns`: a folder of text files for each."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from memagent.errors import MemagentError
from memagent.importer.mlflow_run import MetricPoint, TrackingRun
from memagent.importer.source_files import files_below, is_folder, open_regular, read_text
from memagent.importer.source_run import CONFIG_VALUES

_META = "meta.yaml"
_TRASH = ".trash"
_PARTS = ("artifacts", "datasets", "inputs", "metrics", "models", "outputs", "params", "tags")
"""Folders of a run that hold no runs."""
_STATUSES = {1: "RUNNING", 2: "SCHEDULED", 3: "FINISHED", 4: "FAILED", 5: "KILLED"}
_LINE_BYTES = 200
"""Limit for a point, which is three numbers."""


def is_source(name: str) -> bool:
    return name == _META


def read_runs(path: Path, problems: list[str]) -> Iterator[TrackingRun]:
    """Yield the runs below a folder. Raises MemagentError if they need PyYAML."""
    experiments: dict[Path, str | None] = {}
    for file in files_below(path, is_source, without=_PARTS):
        folder = file.parent
        if _TRASH in folder.parts:
            continue
        meta = _read_meta(file, problems)
        run_id = meta.get("run_id") or meta.get("run_uuid")
        if run_id is None:
            experiments[folder] = _text(meta.get("name"))
        elif meta.get("lifecycle_stage", "active") == "active":
            if folder.parent not in experiments:
                above = _read_meta(folder.parent / _META, [])
                experiments[folder.parent] = _text(above.get("name"))
            yield _stored_run(
                folder, _text(run_id) or folder.name, meta, experiments[folder.parent]
            )


def _stored_run(
    folder: Path, run_id: str, meta: dict[str, Any], experiment: str | None
) -> TrackingRun:
    run = TrackingRun(
        place=folder,
        run_id=run_id,
        status=_status(meta.get("status")),
        name=_text(meta.get("run_name")),
        experiment=experiment,
        user=_text(meta.get("user_id")),
        start_ms=meta.get("start_time"),
        end_ms=meta.get("end_time"),
        parameters=_texts(folder / "params"),
        tags=_texts(folder / "tags"),
        points=(),
    )
    run.points = _points(folder / "metrics", run)
    return run


def _read_meta(path: Path, problems: list[str]) -> dict[str, Any]:
    try:
        import yaml
    except ImportError as error:
        raise MemagentError(
            "Reading MLflow's folders needs a package: pip install 'memagent[import]'"
        ) from error
    try:
        meta = yaml.safe_load(read_text(path))
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        problems.append(f"{path} isn't valid YAML: {str(error).splitlines()[0]}")
        return {}
    return meta if isinstance(meta, dict) else {}


def _texts(folder: Path) -> dict[str, str]:
    files = files_below(folder, lambda _: True) if is_folder(folder) else iter(())
    return {
        file.relative_to(folder).as_posix(): read_text(file)
        for file in islice(files, CONFIG_VALUES)
    }


def _points(folder: Path, run: TrackingRun) -> Iterator[MetricPoint]:
    """Yield the points of all metrics. A last line without an end is being written, or torn."""
    for file in files_below(folder, lambda _: True) if is_folder(folder) else ():
        name = file.relative_to(folder).as_posix()
        try:
            with open_regular(file) as lines:
                while line := lines.readline(_LINE_BYTES):
                    if point := _point(name, line):
                        yield point
                    else:
                        run.skipped["damaged line"] += 1
        except (MemagentError, OSError) as error:
            run.notes.append(f"{file} cannot be read: {error}")


def _point(name: str, line: bytes) -> MetricPoint | None:
    parts = line.split()
    if line[-1:] != b"\n" or len(parts) not in (2, 3):
        return None
    time_ms, value, step = (part.decode(errors="replace") for part in [*parts, b"0"][:3])
    return name, step, time_ms, value


def _status(number: object) -> str:
    return _STATUSES.get(number, "") if isinstance(number, int) else ""


def _text(value: object) -> str | None:
    """Return a text or a number as a text. Anything else in YAML may be a bomb of aliases."""
    return str(value) if isinstance(value, str | int | float) and value != "" else None
