"""The recorded GPU: its histories are repeated, and its table is made of the file."""

from __future__ import annotations

import json

from benchmarks.estimator import recorded, replayed
from benchmarks.estimator.truths import FOLDER


def test_every_history_of_a_real_gpu_is_repeated_exactly():
    histories = list(replayed.repeated())
    assert len(histories) >= 50
    assert [history for history in histories if not history.exact] == []


def test_sources_are_compared_level_by_level():
    rows = [
        {"peak_allocated_bytes": 100, "rehearsed": {"allocated": 100}},
        {"peak_allocated_bytes": 100, "rehearsed": {"allocated": 110}},
        {"peak_allocated_bytes": 100, "rehearsed": {"error": "TypeError"}},
        {"error": "RuntimeError"},
    ]
    compared = recorded.compare("rehearsal", rows, "allocated", "rehearsed", "allocated")
    assert [round(error, 3) for error in compared.errors] == [0, 0.1] and compared.failed == 1
    cells = compared.line().split(" | ")
    assert cells[1:4] == ["2", "1", "1"] and cells[-2:] == ["+10.00", "1 |"]


def test_recording_and_rehearsal_are_joined_case_by_case(tmp_path):
    case = {"name": "mlp", "family": "mlp", "optimizer": "adamw", "holds_output": True}
    row = {"case": case, "peak_allocated_bytes": 5, "history": "gpu/mlp.json.gz"}
    (tmp_path / "gpu.json").write_text(json.dumps({"kind": "recorded", "cases": [row]}))
    rehearsed = {"case": "mlp", "rehearsed": {"allocated": 5, "seconds": 1.0}}
    beside = {"versions": {"torch": "2.11.0"}, "cases": [rehearsed]}
    (tmp_path / "beside.json").write_text(json.dumps(beside))
    out = tmp_path / "truth.json"
    recorded.join(tmp_path / "gpu.json", tmp_path / "beside.json", out)
    (joined,) = json.loads(out.read_text())["cases"]
    assert joined["rehearsed"] == {"allocated": 5} and "history" not in joined


def test_the_table_has_every_group_of_the_recorded_cases():
    rows = json.loads((FOLDER / "nvidia_h200.json").read_text())["cases"]
    allocated, reserved, intervals = recorded.tables(rows)
    for group in {recorded.group_of(row) for row in rows}:
        assert all(f"| {group}" in table for table in (allocated, reserved, intervals))
