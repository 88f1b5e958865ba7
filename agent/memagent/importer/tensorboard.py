"""Runs of TensorBoard: each folder with event files is one, as TensorBoard shows it.

1. All event files of a folder are one run: a restart adds a file.
2. `SummaryWriter.add_hparams` and `add_scalars` write further folders. They belong to the run above
   if its process wrote them: those of the first if it's a single one.
3. There is no end of a run in event files. One that can be read counts as completed.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from memagent.errors import MemagentError
from memagent.importer.record_logs import LogReader
from memagent.importer.scalar_table import NAME_CHARACTERS
from memagent.importer.source_files import files_below
from memagent.importer.source_run import SourceRun

PACKAGE = "tensorboard"
_SESSION_FOLDER = re.compile(r"\d+(\.\d+)?")
_FILE_NAME = re.compile(r".*tfevents\.\d+\.(?P<host>.+?)(\.(?P<process>\d+)(\.\d+)?)?(\.v2)?")
_HPARAMS = "hparams"
_HPARAM_KINDS = ("number_value", "string_value", "bool_value")
PLUGIN_TAGS = 10_000
"""Tags whose plugin is remembered: more than runs have scalars."""
_KINDS = {"histo": "histogram", "obsolete_old_style_histogram": "histogram"}
_NUMBERS = {
    1: ("float_val", "<f"),
    2: ("double_val", "<d"),
    3: ("int_val", "<i"),
    9: ("int64_val", "<q"),
}
"""Field and format of a tensor's numbers, by its data type."""


def is_source(name: str) -> bool:
    return "tfevents" in name and not name.endswith(".profile-empty")


def read_runs(path: Path, problems: list[str]) -> Iterator[SourceRun]:
    """Yield the runs below a folder. Raises MemagentError without TensorBoard's package."""
    reader = _EventReader()
    root = path if path.is_dir() else path.parent
    by_folder = groupby(files_below(path, is_source), key=lambda file: file.parent)
    files = {folder: list(group) for folder, group in by_folder}
    below: dict[Path, list[Path]] = {}
    for folder in files:
        below.setdefault(folder.parent, []).append(folder)
    parts: set[Path] = set()
    ready: dict[Path, SourceRun] = {}
    # a folder comes before those in it
    for folder, own in files.items():
        if folder in parts:
            continue
        run = ready.pop(folder, None) or reader.read(folder, own, root, problems)
        # those of other processes are runs
        same_writer = [
            item for item in below.get(folder, ()) if _writer(files[item]) == _writer(own)
        ]
        for item in same_writer:
            ready[item] = reader.read(item, files[item], root, problems)
        for part, scalar in _parts([ready[item] for item in same_writer]):
            run.scalars.merge(part.scalars, name=scalar)
            for name, value in part.config.items():
                run.configure(name, value, len(str(value)))
            run.skipped += part.skipped
            run.notes += part.notes
            parts.add(part.place)
            del ready[part.place]
        yield run


def _parts(others: Sequence[SourceRun]) -> Iterator[tuple[SourceRun, str | None]]:
    """Yield what belongs to the run above, and the name that its scalar gets there."""
    sessions = [other for other in others if other.config]
    for other in others:
        names = other.scalars.names
        prefix = f"{names[0].replace('/', '_')}_" if len(names) == 1 else None
        is_session = other.config and _SESSION_FOLDER.fullmatch(other.place.name)
        if is_session and len(sessions) == 1:
            yield other, None
        elif prefix and other.place.name.startswith(prefix):
            yield other, f"{names[0]}/{other.place.name.removeprefix(prefix)}"


def _writer(files: Sequence[Path]) -> str:
    """Return the host and the process that wrote a folder's first file."""
    match = _FILE_NAME.fullmatch(files[0].name)
    return f"{match['host']} {match['process']}" if match else files[0].name


class _EventReader:
    """Reads event files by TensorBoard's own messages. Raises MemagentError without them."""

    def __init__(self) -> None:
        try:
            from tensorboard.compat.proto import event_pb2
            from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import masked_crc32c
            from tensorboard.plugins.hparams import plugin_data_pb2
        except ImportError as error:
            raise MemagentError(
                "Reading TensorBoard's files needs a package: pip install 'memagent[import]'"
            ) from error
        self._parse_event = event_pb2.Event.FromString
        self._parse_hparams = plugin_data_pb2.HParamsPluginData.FromString
        self._checksum = masked_crc32c
        self._plugins: dict[str, str] = {}

    def read(
        self, folder: Path, files: Sequence[Path], root: Path, problems: list[str]
    ) -> SourceRun:
        """Return the run of a folder. Files that can't be opened become problems."""
        name = folder.name if folder == root else folder.relative_to(root).as_posix()
        run = SourceRun("tensorboard", folder, name=name, status="completed")
        self._plugins = {}
        for file in files:
            try:
                self._read_file(file, run)
            except (MemagentError, OSError) as error:
                problems.append(str(error))
        run.key = f"{files[0].name}\n{run.started_at}"
        match = _FILE_NAME.fullmatch(files[0].name)
        run.host = match["host"] if match else None
        return run

    def _read_file(self, path: Path, run: SourceRun) -> None:
        log = LogReader(path)
        for record, checksum in log.tf_records(self._checksum):
            try:
                event = self._parse_event(record)
            except Exception:  # noqa: BLE001 - protobuf's implementations have no common error
                event = None
            # the checksum in Python takes longer than all else, so only of what is taken
            is_small = len(record) < 2**12
            if event is None or (is_small and self._checksum(record) != checksum):
                run.skip("damaged record")
                continue
            self._take(event, run)
        if log.oversized:
            run.skip("record over 2 MiB", log.oversized)
        if log.note is not None:
            run.notes.append(log.note)

    def _take(self, event: Any, run: SourceRun) -> None:
        time_s = event.wall_time
        if run.started_at is None and 0 < time_s < 1e12:
            run.started_at = time_s
        kind = event.WhichOneof("what")
        if kind in ("graph_def", "meta_graph_def", "tagged_run_metadata"):
            run.skip("graph")
        for value in event.summary.value if kind == "summary" else ():
            kind = value.WhichOneof("value")
            if kind == "simple_value":
                run.scalars.add(value.tag, event.step, time_s, value.simple_value)
            else:
                self._take_other(value, kind, event, run)

    def _take_other(self, value: Any, kind: str | None, event: Any, run: SourceRun) -> None:
        # only the first value of a tag names its plugin
        plugin = value.metadata.plugin_data.plugin_name or self._plugins.get(value.tag, "")
        if plugin and len(self._plugins) < PLUGIN_TAGS and len(value.tag) <= NAME_CHARACTERS:
            self._plugins[value.tag] = plugin[:NAME_CHARACTERS]
        number = _number(value.tensor) if kind == "tensor" and plugin in ("scalars", "") else None
        if number is not None:
            run.scalars.add(value.tag, event.step, event.wall_time, number)
        elif plugin == _HPARAMS:
            self._take_hparams(value.metadata.plugin_data.content, run)
        else:
            name = plugin if kind in ("tensor", None) else kind
            run.skip(_KINDS.get(name or "", name or "tensor").rstrip("s"))

    def _take_hparams(self, content: bytes, run: SourceRun) -> None:
        try:
            session = self._parse_hparams(content)
        except Exception:  # noqa: BLE001 - as above
            run.skip("damaged record")
            return
        for name, value in session.session_start_info.hparams.items():
            kind = value.WhichOneof("kind")
            plain = getattr(value, kind) if kind in _HPARAM_KINDS else None
            run.configure(name, plain, len(plain) if isinstance(plain, str) else 0)


def _number(tensor: Any) -> float | None:
    """Return the number of a tensor that holds a single one, else None."""
    if tensor.dtype not in _NUMBERS or any(axis.size != 1 for axis in tensor.tensor_shape.dim):
        return None
    field, form = _NUMBERS[tensor.dtype]
    values = getattr(tensor, field)
    if len(values) == 1:
        return float(values[0])
    if len(tensor.tensor_content) == struct.calcsize(form):
        return float(struct.unpack(form, tensor.tensor_content)[0])
    return None
