"""Accuracy of the allocator simulator alone: recorded histories must be repeated exactly."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.estimator import history
from benchmarks.estimator.truths import FOLDER


@dataclass(frozen=True)
class Repeated:
    """One history. `worst_bytes` is the largest difference of reserved bytes, simulated minus
    recorded; `note` says why a history was not judged.
    """

    source: str
    case: str
    exact: bool | None = None
    compared: int = 0
    worst_bytes: int | None = None
    note: str = ""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def repeated(folder: Path = FOLDER) -> Iterator[Repeated]:
    """Return every history that `record` wrote."""
    for path in sorted(folder.glob("*.json")):
        content = json.loads(path.read_text())
        for row in content.get("cases", ()):
            if row.get("history"):
                file = folder / row["history"]
                yield _judged(content["gpu"], row["case"]["name"], file, content["device_bytes"])


def _judged(source: str, case: str, path: Path, device_bytes: int | None) -> Repeated:
    if find_spec("memagent.estimator.allocator") is None:
        return Repeated(source, case, note="the simulator is not built")
    from benchmarks.estimator.simulation_score import score_history
    from memagent.errors import EstimateError

    try:
        answer = score_history(history.read(path), total_bytes=device_bytes)
    except (EstimateError, OSError) as failure:
        return Repeated(source, case, note=f"{type(failure).__name__}: {failure}")
    return Repeated(source, case, answer.exact, answer.compared, answer.worst_reserved_error)
