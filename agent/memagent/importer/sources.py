"""The trackers whose files can be imported: one module each, and an entry in SOURCES."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from memagent.errors import SettingError
from memagent.importer import mlflow, tensorboard, wandb
from memagent.importer.source_files import files_below
from memagent.importer.source_run import SourceRun


class TrackerSource(Protocol):
    """The interface of a tracker's module. Packages are imported by `read_runs`, if at all."""

    def is_source(self, name: str, /) -> bool:
        """Return True for the name of a file that may belong to the tracker."""

    def read_runs(self, path: Path, problems: list[str], /) -> Iterator[SourceRun]:
        """Yield the runs at or below a path; append a sentence for each that can't be read."""


SOURCES: dict[str, TrackerSource] = {"tensorboard": tensorboard, "wandb": wandb, "mlflow": mlflow}
_SQLITE = "sqlite:///"


def find_sources(path: Path) -> list[str]:
    """Return the trackers that have files at or below a path, by name."""
    if path.is_file() and not any(source.is_source(path.name) for source in SOURCES.values()):
        return ["mlflow"]  # a database may have any name
    names = dict.fromkeys(SOURCES, False)
    for file in files_below(path, lambda _: True):
        for name, source in SOURCES.items():
            names[name] = names[name] or source.is_source(file.name)
        if all(names.values()):
            break
    return [name for name, is_found in names.items() if is_found]


def parse_path(text: str) -> Path:
    """Return the path of an argument, or of MLflow's tracking URI. Raises SettingError."""
    if text.startswith(("http://", "https://", "databricks", "postgresql", "mysql")):
        raise SettingError(f"{text} is a server: give the files or the SQLite database of a store.")
    plain = text.removeprefix(_SQLITE) if text.startswith(_SQLITE) else text.removeprefix("file://")
    path = Path(plain).expanduser().resolve()
    if not path.exists():
        raise SettingError(f"{plain} does not exist")
    return path
