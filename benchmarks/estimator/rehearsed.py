"""Published measurements rehearsed: `python -m benchmarks.estimator rehearsals`.

The rows whose model and kernels are the libraries' own are trained by their own code
(`fine_tuning.py`) on the rehearsal device. Run it in an environment with the rows' libraries and a
CUDA build of torch: the versions at hand are part of the result.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from statistics import median
from typing import Any

import msgspec

import memagent
from benchmarks.estimator.public import FILE
from benchmarks.estimator.truths import FOLDER

RESULTS = Path(__file__).parent / "rehearsals.json"
_LIBRARIES = ("torch", "transformers", "accelerate", "peft")
_MODELS = {
    "bigcode/gpt_bigcode-santacoder": "santacoder",
    "mistralai/Mistral-7B-v0.1": "mistral7b",
    "mistralai/Mixtral-8x7B-Instruct-v0.1": "mixtral8x7b",
}
_MIB = 2**20


@dataclass(frozen=True)
class RehearsedRow:
    """A published row and its rehearsal; measured bytes are None for a row that died."""

    case: str
    measured_bytes: int | None
    nvidia_smi_bytes: int
    status: str
    rehearsed_bytes: int
    reserved_bytes: int
    device_bytes: tuple[int, int, int]
    seconds: float
    host_bytes: int | None

    @property
    def error_ratio(self) -> float | None:
        """Rehearsed less measured, as a ratio."""
        if self.measured_bytes is None or self.status == "oom":
            return None
        return self.rehearsed_bytes / self.measured_bytes - 1

    @property
    def has_right_verdict(self) -> bool:
        return (self.status == "oom") == (self.measured_bytes is None)

    def line(self) -> str:
        if self.measured_bytes is None:
            verdict = "died, and so does its rehearsal" if self.has_right_verdict else "MISSED"
            return f"| {self.case} | {verdict} | | | | {self.seconds:.0f} |"
        low, _, high = self.device_bytes
        ratio = f"{100 * self.error_ratio:+.4f} %" if self.error_ratio is not None else "died"
        return (
            f"| {self.case} | {self.measured_bytes / _MIB:,.2f} | {ratio} "
            f"| {self.nvidia_smi_bytes / _MIB:,.0f} | {low / _MIB:,.0f} to {high / _MIB:,.0f} "
            f"| {self.seconds:.0f} |"
        )


def main(out: Path | None, only: str = "") -> int:
    """Rehearse the rows with `only` in their names, print the table, and write the results.

    Rows that aren't rehearsed again keep their results if the versions are the same.
    """
    versions = {name: metadata.version(name) for name in _LIBRARIES}
    print(", ".join(f"{name} {version}" for name, version in versions.items()), end="\n\n")
    print("| | measured MiB | rehearsed | nvidia-smi MiB | rehearsed on the device | s |")
    print("| --- | --- | --- | --- | --- | --- |", flush=True)
    known = _read(out, versions) if only and out is not None else {}
    rows = []
    for facts in published_rows():
        case = case_of(facts)
        row = known.get(case) if only not in case else _rehearse(facts)
        if row is not None:
            rows.append(row)
            print(row.line(), flush=True)
    errors = [abs(row.error_ratio) for row in rows if row.error_ratio is not None]
    right = sum(row.has_right_verdict for row in rows)
    print(f"\n{right} of {len(rows)} verdicts are right", end="")
    if errors:
        print(f"; median {100 * median(errors):.4f} %, worst {100 * max(errors):.4f} %")
    if out is not None:
        content = {"versions": versions, "rows": [asdict(row) for row in rows]}
        out.write_text(json.dumps(content, indent=1) + "\n")
    return 0 if right == len(rows) else 1


def _read(out: Path, versions: Mapping[str, str]) -> dict[str, RehearsedRow]:
    """Return the rows of an earlier result with these versions."""
    content = json.loads(out.read_text()) if out.exists() else {}
    if content.get("versions") != versions:
        return {}
    rows = [msgspec.convert(row, RehearsedRow) for row in content["rows"]]
    return {row.case: row for row in rows}


def published_rows() -> Iterator[Mapping[str, Any]]:
    """Yield the rows of the public file that need no library but the model's own."""
    for row in json.loads((FOLDER / FILE).read_text())["rows"]:
        if row["fused_kernels"] or row["quantised"] or row["framework"] != "none":
            continue
        yield row


def case_of(row: Mapping[str, Any]) -> str:
    return f"{_MODELS[row['model']]} {'lora ' if row['lora_rank'] else ''}x {row['batch']}"


def _rehearse(row: Mapping[str, Any]) -> RehearsedRow:
    name, rank = _MODELS[row["model"]], row["lora_rank"] or 0
    began_at = time.monotonic()
    result = memagent.rehearse(
        "benchmarks.estimator.fine_tuning",
        [name, str(row["batch"]), str(rank)],
        gpu="a100-80gb",
        module=True,
        silent=True,
    )
    return RehearsedRow(
        case=case_of(row),
        measured_bytes=row["peak_allocated_bytes"],
        nvidia_smi_bytes=row["nvidia_smi_mib"] * _MIB,
        status=result.status,
        rehearsed_bytes=result.peak_allocated_bytes,
        reserved_bytes=result.peak_reserved_bytes,
        device_bytes=result.device_bytes,
        seconds=round(time.monotonic() - began_at, 1),
        host_bytes=result.host_peak_bytes,
    )
