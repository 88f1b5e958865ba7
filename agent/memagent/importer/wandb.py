"""Runs of W&B from `.wandb` files, which its client writes with and without a connection.

1. A file is one launch. Those of a resumed run have its id, and become its attempts.
2. Scalars are numbers of the history, nested names joined by dots; a number that only the summary
   has is a point of the last step, once the run has ended.
3. `gpu.N.*` of the system metrics are readings of devices, and so is the memory of the process.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from memagent.errors import MemagentError
from memagent.importer.device_log import DEVICE_LIMIT, HOST, SHARE
from memagent.importer.record_logs import LogReader
from memagent.importer.scalar_table import NAME_CHARACTERS, to_float, to_step
from memagent.importer.source_files import files_below
from memagent.importer.source_run import SourceRun
from memagent.sampling.scalars import MAX_NAMES
from memagent.units import MIB

PACKAGE = "wandb"
_SYSTEM_METRIC = re.compile(r"gpu\.(\d{1,3})\.(\w+)|proc\.memory\.rssMB")
_GPU_COLUMNS = {
    "memoryAllocatedBytes": ("device_used_bytes", 1.0),
    "memoryAllocated": (SHARE, 0.01),
    "gpu": ("utilization_ratio", 0.01),
    "powerWatts": ("power_w", 1.0),
    "temp": ("temperature_c", 1.0),
}
"""Column and factor of a system metric of a GPU."""
_JSON_CHARACTERS = 2**16
"""Limit for a value to parse: objects take some ten times the size of their text."""
_UUID_CHARACTERS = 200
_SKIPPED = {
    "output": "console line",
    "output_raw": "console line",
    "artifact": "artifact",
    "use_artifact": "artifact",
    "alert": "alert",
    "tbrecord": "folder of TensorBoard",
}


def is_source(name: str) -> bool:
    return name.endswith(".wandb")


def read_runs(path: Path, problems: list[str]) -> Iterator[SourceRun]:
    """Yield the launches below a folder. Raises MemagentError without W&B's package."""
    try:
        from wandb.proto import wandb_internal_pb2
    except ImportError as error:
        raise MemagentError(
            "Reading W&B's files needs a package: pip install 'memagent[import]'"
        ) from error
    for file in files_below(path, is_source):
        try:
            yield _Launch(file, wandb_internal_pb2.Record.FromString).run
        except (MemagentError, OSError) as error:
            problems.append(str(error))


class _Launch:
    """Reads one file into `run`. Raises MemagentError if it holds no run."""

    def __init__(self, path: Path, parse: Any) -> None:
        self.run = SourceRun("wandb", path)
        self._gpus: dict[str, str] = {}
        self._summary: dict[str, float] = {}
        self._step = 0
        takes = {
            "run": self._take_run,
            "config": lambda record: self._take_config(record.update),
            "history": self._take_history,
            "summary": self._take_summary,
            "stats": self._take_stats,
            "environment": self._take_environment,
            "exit": self._take_exit,
        }
        log = LogReader(path)
        for body in log.wandb_records():
            try:
                record = parse(body)
            except Exception:  # noqa: BLE001 - protobuf's implementations have no common error
                self.run.skip("damaged record")
                continue
            kind = record.WhichOneof("record_type")
            if kind in takes:
                takes[kind](getattr(record, kind))
            elif kind in _SKIPPED:
                self.run.skip(_SKIPPED[kind])
        self._finish(log)

    def _finish(self, log: LogReader) -> None:
        run = self.run
        if not run.key:
            raise MemagentError(f"{log.path} has no run in it{f': {log.note}' if log.note else ''}")
        if log.oversized:
            run.skip("record over 2 MiB", log.oversized)
        if log.note is not None:
            run.notes.append(log.note)
        if run.status is None:
            return  # the summary of a run in progress changes
        known = set(run.scalars.names)
        for name, value in self._summary.items():
            if name not in known:
                run.scalars.add(name, self._step, run.last_time_s, value)
        run.finished_at = run.last_time_s

    def _take_run(self, record: Any) -> None:
        run = self.run
        run.key = f"{record.entity}\n{record.project}\n{record.run_id}"
        run.name = record.display_name or record.run_id
        run.project = record.project or None
        run.host = record.host or None
        run.tags = list(record.tags)
        run.started_at = _seconds(record.start_time) or None
        facts = {
            "wandb_id": record.run_id,
            "wandb_entity": record.entity,
            "notes": record.notes,
            "group": record.run_group,
            "job_type": record.job_type,
            "sweep": record.sweep_id,
            "git_remote": record.git.remote_url,
            "git_commit": record.git.commit,
        }
        run.environment.update({name: text for name, text in facts.items() if text})
        self._take_config(record.config.update)

    def _take_config(self, items: Iterable[Any]) -> None:
        for item in items:
            name = _name(item)
            if name.startswith("_wandb"):
                continue
            value = _parse_json(item.value_json)
            # W&B's own files wrap values
            if isinstance(value, dict) and "value" in value and set(value) <= {"value", "desc"}:
                value = value["value"]
            self.run.configure(name, value, len(item.value_json))

    def _take_history(self, record: Any) -> None:
        numbers = self._numbers(record.item)
        step = to_step(numbers.pop("_step", record.step.num))
        runtime_s = numbers.pop("_runtime", 0.0)
        time_s = numbers.pop("_timestamp", (self.run.started_at or 0.0) + runtime_s)
        self._step = max(self._step, step)
        for name, value in numbers.items():
            self.run.scalars.add(name, step, time_s, value)

    def _take_summary(self, record: Any) -> None:
        before = self.run.skipped.copy()
        numbers = self._numbers(record.update)
        self.run.skipped = before  # other values were counted in the history
        for name, value in numbers.items():
            is_known = name in self._summary or len(self._summary) < MAX_NAMES
            if is_known and not name.startswith("_") and len(name) <= NAME_CHARACTERS:
                self._summary[name] = value

    def _numbers(self, items: Iterable[Any]) -> dict[str, float]:
        """Return the numbers of a row by name; count what is something else by kind."""
        numbers: dict[str, float] = {}
        objects: dict[str, str] = {}
        for item in items:
            name, text = _name(item), item.value_json
            if name.endswith("._type"):
                objects[name.removesuffix("_type")] = str(_parse_json(text))
            elif text[:1] == "{":
                self._add_object(name, _parse_json(text), numbers, objects)
            elif (number := _to_number(text)) is not None:
                numbers[name] = number
            elif text != "null" and "." not in name:
                self.run.skip("list" if text[:1] == "[" else "text")
        for prefix, kind in objects.items():
            self.run.skip(kind.removesuffix("-file"))
            for name in [name for name in numbers if name.startswith(prefix)]:
                del numbers[name]
        return numbers

    def _add_object(
        self, name: str, value: Any, numbers: dict[str, float], objects: dict[str, str]
    ) -> None:
        if not isinstance(value, dict):
            self.run.skip("object")
        elif "_type" in value:
            objects[f"{name}."] = str(value["_type"])
        else:
            numbers.update(_flatten(value, name))

    def _take_stats(self, record: Any) -> None:
        time_s = _seconds(record.timestamp)
        for item in record.item:
            match = _SYSTEM_METRIC.fullmatch(item.key)
            value = _to_number(item.value_json)
            if match is None or value is None or (match[1] and match[2] not in _GPU_COLUMNS):
                self.run.skip("other system metric")
            elif match[1] is None:
                for column in ("allocated_bytes", "device_used_bytes", "host_rss_bytes"):
                    self.run.devices.add(HOST, column, time_s, value * MIB)
            else:
                column, factor = _GPU_COLUMNS[match[2]]
                device = self._gpus.get(match[1], f"gpu{match[1]}")
                self.run.devices.add(device, column, time_s, value * factor)

    def _take_environment(self, record: Any) -> None:
        run = self.run
        run.host = record.host or run.host
        run.user = record.username or run.user
        command = " ".join([record.program, *record.args]).strip()
        facts = {
            "platform": record.os,
            "python": record.python.removeprefix("CPython "),
            "command": command,
            "directory": record.root,
            "git_remote": record.git.remote_url,
            "git_commit": record.git.commit,
        }
        run.environment.update({name: text for name, text in facts.items() if text})
        for index, gpu in enumerate(record.gpu_nvidia[:DEVICE_LIMIT]):
            device = self._gpus.setdefault(str(index), gpu.uuid[:_UUID_CHARACTERS] or f"gpu{index}")
            run.devices.describe(device, name=gpu.name, total_bytes=gpu.memory_total)
        run.devices.describe(HOST, total_bytes=record.memory.total)

    def _take_exit(self, record: Any) -> None:
        self.run.status = "failed" if record.exit_code else "completed"
        if record.exit_code:
            self.run.error = f"exit status {record.exit_code}"


def _name(item: Any) -> str:
    return item.key or ".".join(item.nested_key)


def _seconds(timestamp: Any) -> float:
    return float(timestamp.seconds) + float(timestamp.nanos) / 1e9


def _parse_json(text: str) -> Any:
    """Return the value of a JSON text, or the text if it's none or too long."""
    if len(text) > _JSON_CHARACTERS:
        return f"({len(text)} characters)"
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _to_number(text: str) -> float | None:
    """Return a JSON text's number; W&B writes those that JSON hasn't as texts."""
    if text in ("true", "false"):
        return float(text == "true")
    return to_float(text.strip('"') if text[:1] == '"' and text[-2:-1] in ("N", "y") else text)


def _flatten(value: Mapping[str, Any], prefix: str, depth: int = 0) -> Iterator[tuple[str, float]]:
    for name, item in value.items():
        if isinstance(item, dict) and depth < 8:
            yield from _flatten(item, f"{prefix}.{name}", depth + 1)
        elif isinstance(item, int | float) and (number := to_float(item)) is not None:
            yield f"{prefix}.{name}", number
