"""Recording, terms and rehearsal of the benchmark's cases, each in processes of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.estimator import replayed, truths

pytestmark = pytest.mark.gpu
ROOT = Path(__file__).parents[2]
CASES = ("mlp", "decoder lora", "volume x 2")


def run(verb: str, out: Path, *options: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.estimator", verb, "--out", out, *options]
    subprocess.run(command, cwd=ROOT, check=True, timeout=280)
    return json.loads(out.read_text())


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """The file of a recording of three cases, and its content."""
    out = tmp_path_factory.mktemp("truth") / "gpu.json"
    return out, run("record", out, "--jobs", "2", "--only", *CASES)


def test_each_case_is_recorded_in_all_its_runs(recorded):
    rows = {row["case"]["name"]: row for row in recorded[1]["cases"]}
    assert set(rows) == set(CASES) and not any(row.get("error") for row in rows.values())
    for row in rows.values():
        assert row["peak_allocated_bytes"] == row["undisturbed"]["allocated"]
        assert row["peak_reserved_bytes"] + row["outside_bytes"] >= row["peak_device_bytes"]
        assert row["outside_bytes"] >= row["context_bytes"] > 0


def test_a_limited_case_stays_within_its_limit(recorded):
    rows = {row["case"]["name"]: row for row in recorded[1]["cases"]}
    limited = rows["volume x 2"]["limited"]
    assert limited["reserved"] <= limited["limit_bytes"] < rows["volume x 2"]["peak_reserved_bytes"]
    assert limited["died"] or limited["counters"]["num_alloc_retries"] > 0
    assert "limited" not in rows["mlp"]  # has too little that could be released


def test_a_recording_is_a_truth_and_its_histories_are_repeated(recorded):
    folder = recorded[0].parent
    assert {truth.case.name for truth in truths.recorded(folder)} == set(CASES)
    assert [one.case for one in replayed.repeated(folder) if not one.exact] == []


def test_a_recording_ends_with_its_time(tmp_path):
    out = tmp_path / "gpu.json"
    content = run("record", out, "--seconds", "0", "--only", *CASES)
    assert content["cases"] == []


def test_cases_are_rehearsed_and_traced_beside_the_gpu(tmp_path):
    content = run("beside", tmp_path / "beside.json", "--jobs", "2", "--only", *CASES)
    rows = {row["case"]: row for row in content["cases"]}
    for case in CASES[:2]:  # the trace doesn't know what cuDNN keeps
        assert rows[case]["rehearsed"]["allocated"] == rows[case]["traced"]["allocated_bytes"]


def test_terms_are_measured_by_step(tmp_path):
    content = run("terms", tmp_path / "terms.json", "--jobs", "2", "--only", "cublas fp32", "nccl")
    by_name = {sequence["name"]: sequence for sequence in content["sequences"]}
    context, product = by_name["cublas fp32"]["steps"]
    assert context["outside_bytes"] > 0
    assert product["allocated_bytes"] > context["allocated_bytes"]  # the workspace of cuBLAS
    assert [step["error"] for step in by_name["nccl"]["steps"]] == ["", ""]
