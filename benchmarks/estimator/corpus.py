"""Measured trainings beside what each method predicts: the corpus that intervals are calibrated on.

`python -m benchmarks.estimator corpus --out FILE` traces and estimates every training of three
sources, and writes a line for each:

- `nvidia_h200`: the recorded trainings of one GPU, at all levels.
- `rehearsals`: the trainings of `agreement.json`, as torch's allocator counts them.
- `published`: fine-tunings on an A100, tensors and nvidia-smi.

Run it with a CUDA build of torch. `intervals.py` reads the file.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.estimator import agreement, architectures, estimators, isolated, truths, zoo
from benchmarks.estimator.estimators import Prediction
from benchmarks.estimator.truths import FOLDER, Truth
from benchmarks.estimator.workload import Case

FILE = Path(__file__).with_name("corpus.json")
METHODS: dict[str, Callable[..., Prediction]] = {
    "trace": estimators.ours_by_trace,
    "formula": estimators.ours_by_formula,
}
_TIMEOUT_S = 240.0
_TYPES = {"mistral7b": "mistral", "mixtral8x7b": "mixtral", "santacoder": "gpt_bigcode"}
_RECORDED_TORCH = "2.11.0"


@dataclass(frozen=True)
class Measured:
    """One training: its peaks by level, and the predictions by method.

    - program: the model's name; all its trainings are on one side of a split.
    - outside_bytes: what the process held outside of torch's allocator, if it was measured.
    """

    source: str
    case: str
    program: str
    levels: dict[str, int]
    outside_bytes: int | None = None
    predictions: dict[str, Prediction] = field(default_factory=dict)


def main(out: Path, only: str = "") -> int:
    """Predict every training whose name has `only` in it, and write the corpus."""
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
    rows: list[Measured] = []
    ready = set()
    for truth, source, row in _sources():
        if only not in f"{source} {truth.case.name}":
            continue
        if not truth.is_formula_only and (truth.case.family, truth.case.lora) not in ready:
            ready.add((truth.case.family, truth.case.lora))
            estimators.warm_up_without_cuda(truth.case)
        rows.append(_predicted(truth, source, row))
        done = ", ".join(rows[-1].predictions)
        print(f"{source} {truth.case.name}: {done}", file=sys.stderr, flush=True)
        lines = ",\n".join(json.dumps(_plain(asdict(row)), separators=(",", ":")) for row in rows)
        out.write_text(f"[\n{lines}\n]\n")
    return 0


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out what is None, and the intervals that the file is for."""
    return {
        name: _plain(value) if isinstance(value, dict) else value
        for name, value in values.items()
        if value is not None and name != "intervals"
    }


def _sources() -> Iterator[tuple[Truth, str, Mapping[str, Any]]]:
    path = FOLDER / "nvidia_h200.json"
    content = json.loads(path.read_text())
    for row, truth in zip(content["cases"], truths.recorded(), strict=True):
        if truth.levels and truth.case.allocator is None:
            yield truth, path.stem, row
    counted = json.loads((Path(__file__).parent / "agreement.json").read_text())["rows"]
    cases = {case.name: case for case in agreement.cases_of((), quick=False)}
    for row in counted:
        case = cases.get(row["case"])
        if row["counted"] and case is not None and not case.compiled:
            yield Truth("rehearsals", "cuda", case, row["counted"]), "rehearsals", {}
    for truth in truths.published():
        if truth.levels:
            yield truth, "published", {}


def _predicted(truth: Truth, source: str, row: Mapping[str, Any]) -> Measured:
    """Estimate one training. Models of transformers keep the trace of the recording's own version.

    Between transformers 5.17 and 5.24 the models themselves differ by up to 19 %.
    """
    case = truth.case
    where = replace(truth.where, context_bytes=None, total_bytes=None)
    if source == "nvidia_h200":
        where = replace(where, capability=(9, 0), torch_version=_RECORDED_TORCH)
    predictions = {}
    for name, estimate in METHODS.items():
        if name != "formula" and (truth.is_formula_only or zoo.missing(case)):
            continue
        extra = (truth.spec,) if name == "formula" and truth.spec is not None else ()
        call = partial(_shortened, estimate, case, where, *extra)
        outcome = isolated.call(call, timeout_s=_TIMEOUT_S)
        if outcome.value is not None:
            predictions[name] = outcome.value
        else:
            print(f"  {name}: {outcome.error}", file=sys.stderr, flush=True)
    is_recorded = "allocated_bytes" in row.get("traced", {})
    if case.family in architectures.FAMILIES and "trace" in predictions and is_recorded:
        predictions["trace"] = _as_recorded(predictions["trace"], row["traced"])
    outside = row.get("outside_bytes")
    return Measured(source, case.name, _program(case), truth.levels, outside, predictions)


def _as_recorded(ours: Prediction, recorded: Mapping[str, Any]) -> Prediction:
    """Return the recorded trace's peaks, with our context, group and long run's cache."""
    cache = (ours.device_bytes or 0) - (ours.reserved_bytes or 0)
    return replace(
        ours,
        allocated_bytes=recorded["allocated_bytes"],
        reserved_bytes=recorded["reserved_bytes"],
        device_bytes=recorded["reserved_bytes"] + cache,
    )


def _shortened(estimate: Callable[..., Prediction], *arguments: Any) -> Prediction:
    return estimate(*arguments)


def _program(case: Case) -> str:
    """Return the model's type as transformers names it, or the net's name."""
    name = case.family.partition(" ")[0]
    return _TYPES.get(name, name)


def read(path: Path = FILE) -> list[Measured]:
    """Return the rows of a corpus."""
    return [_row(row) for row in json.loads(path.read_text())]


def _row(row: Mapping[str, Any]) -> Measured:
    predictions = {name: Prediction(**each) for name, each in row["predictions"].items()}
    return Measured(**{**row, "predictions": predictions})
