"""Recorded trainings beside their rehearsal, trace, live readings and simulation:
`python -m benchmarks.estimator recorded`.

`join` puts the results of `record` and `beside` into one file below `truth/`; the table is made of
that file alone.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.estimator import architectures, replayed, vision
from benchmarks.estimator.score import quantile
from benchmarks.estimator.truths import FOLDER

Row = Mapping[str, Any]
_SOURCES = {
    "a second run": ("undisturbed", "{}"),
    "rehearsal": ("rehearsed", "{}"),
    "trace": ("traced", "{}_bytes"),
    "agent": ("read", "{}"),
}
"""Where a row has the figures of each source, and their names."""
_LEFT_OUT = ("seconds", "undisturbed_allocated_bytes", "others_bytes", "is_own")
_MIB = 2**20


@dataclass(frozen=True)
class Comparison:
    """How one source of figures meets the recorded ones."""

    name: str
    errors: tuple[float, ...]
    failed: int = 0

    def line(self) -> str:
        if not self.errors:
            return f"| {self.name} | 0 | | | | | {self.failed} |"
        sizes = sorted(map(abs, self.errors))
        worst = max(self.errors, key=abs)
        same = sum(error == 0 for error in self.errors)
        return (
            f"| {self.name} | {len(sizes)} | {same} | {sum(size <= 1e-3 for size in sizes)} "
            f"| {100 * quantile(sizes, 0.5):.3f} | {100 * quantile(sizes, 0.9):.2f} "
            f"| {100 * worst:+.2f} | {self.failed} |"
        )


def join(recording: Path, beside: Path, out: Path) -> None:
    """Write one file with a line for each case. Histories that aren't beside it are left out."""
    content = json.loads(recording.read_text())
    others = {row["case"]: row for row in json.loads(beside.read_text())["cases"]}
    content["rehearsed_with"] = json.loads(beside.read_text())["versions"]
    rows = [_joined(row, others.get(row["case"]["name"], {})) for row in content.pop("cases")]
    for run in (run for row in rows for run in (row, row.get("limited", {}))):
        if "history" in run and not (out.parent / out.stem / Path(run["history"]).name).exists():
            del run["history"]
        elif "history" in run:
            run["history"] = f"{out.stem}/{Path(run['history']).name}"
    head = json.dumps(content)[:-1]
    lines = ",\n".join(json.dumps(row, separators=(",", ":")) for row in rows)
    out.write_text(f'{head}, "cases": [\n{lines}\n]}}\n')


def _joined(row: Row, other: Row) -> dict[str, Any]:
    kept = {key: value for key, value in row.items() if key not in _LEFT_OUT}
    defaults = {"optimizer": "adamw", "dtype": "float32", "checkpointing": "none"}
    case = {
        key: value
        for key, value in row["case"].items()
        if value not in (None, False) and defaults.get(key) != value
    }
    kept["case"] = {"holds_output": row["case"]["holds_output"], **case}
    if "phases" in row:
        kept["phases"] = {
            phase: {"allocated": sizes["allocated"]} for phase, sizes in row["phases"].items()
        }
    for name in ("rehearsed", "traced"):
        if name in other:
            kept[name] = {
                key: value for key, value in other[name].items() if key not in ("seconds", "phases")
            }
    return kept


def group_of(row: Row) -> str:
    """Return the part of the zoo that a case is from."""
    case = row["case"]
    if case.get("allocator"):
        return "allocator settings"
    if case["family"] in vision.FAMILIES or case.get("batch"):
        return "torchvision, timm, LSTM"
    if case["family"] in architectures.FAMILIES:
        return "transformers"
    return "zoo, large" if case.get("size") == "large" else "zoo, small"


def main(folder: Path = FOLDER) -> int:
    """Print the tables of every recorded GPU. Return 1 if there is none."""
    paths = [path for path in sorted(folder.glob("*.json")) if _is_recorded(path)]
    for path in paths:
        content = json.loads(path.read_text())
        print(f"{content['gpu']}, driver {content['driver']}, torch {content['torch']}\n")
        for part in tables(content["cases"]):
            print(part, end="\n\n")
    histories = list(replayed.repeated(folder))
    exact = [history for history in histories if history.exact]
    print(f"{len(exact)} of {len(histories)} histories are repeated exactly")
    for history in histories:
        if not history.exact:
            print(f"   {history.case}: {history.worst_bytes} bytes {history.note}")
    return 0 if paths else 1


def tables(rows: list[Row]) -> Iterator[str]:
    """Yield a table for each level, then that of the intervals."""
    groups: dict[str, list[Row]] = {"all": rows}
    for row in rows:
        groups.setdefault(group_of(row), []).append(row)
    for level in ("allocated", "reserved"):
        lines = [
            f"| {level} | judged | same | within 0.1 % | median % | p90 % | worst % | missing |",
            "| --- | --- | --- | --- | --- | --- | --- | --- |",
        ]
        for group, members in groups.items():
            for source, (key, field) in _SOURCES.items():
                compared = compare(f"{group}: {source}", members, level, key, field.format(level))
                lines.append(compared.line())
        yield "\n".join(lines)
    yield "\n".join(_device_lines(groups))


def compare(name: str, rows: Iterable[Row], level: str, key: str, field: str) -> Comparison:
    """Compare a source's peaks with the measured ones."""
    measured = [row for row in rows if row.get(f"peak_{level}_bytes")]
    pairs = [((row.get(key) or {}).get(field), row[f"peak_{level}_bytes"]) for row in measured]
    errors = tuple(told / true - 1 for told, true in pairs if told)
    return Comparison(name, errors, len(pairs) - len(errors))


def _device_lines(groups: Mapping[str, list[Row]]) -> Iterator[str]:
    yield "| 90 % interval of the trace holds | allocated | reserved | device | median error % |"
    yield "| --- | --- | --- | --- | --- |"
    for group, rows in groups.items():
        cells = [_held(rows, level) for level in ("allocated", "reserved", "device")]
        errors = compare(group, rows, "device", "traced", "device_bytes").errors
        sizes = sorted(map(abs, errors))
        middle = f"{100 * quantile(sizes, 0.5):.2f}" if sizes else ""
        yield f"| {group} | {' | '.join(cells)} | {middle} |"


def _held(rows: Iterable[Row], level: str) -> str:
    held = [
        low <= row[f"peak_{level}_bytes"] <= high
        for row in rows
        if row.get(f"peak_{level}_bytes")
        for low, high in [(row.get("traced") or {}).get("intervals", {}).get(level) or (0, 0)]
        if high
    ]
    return f"{sum(held)} of {len(held)}"


def _is_recorded(path: Path) -> bool:
    return json.loads(path.read_text()).get("kind") == "recorded"
