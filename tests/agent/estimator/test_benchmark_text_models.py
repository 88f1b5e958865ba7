"""`python -m benchmarks.estimator text-models`: real and traced steps of a library's models."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("transformers")

from benchmarks.estimator.__main__ import main
from benchmarks.estimator.text_models import compare


@pytest.mark.parametrize("name", ["gpt2", "xlm"])
def test_a_trace_needs_the_bytes_of_the_real_steps(name):
    row = compare("CausalLM", name)
    assert row.real_bytes and row.real_bytes == row.traced_bytes


def test_it_prints_totals_and_names_what_it_leaves_out(tmp_path, capsys):
    out = tmp_path / "rows.json"
    assert main(["text-models", "--only", "bert", "xmod", "--json", str(out)]) == 0
    assert "2 models ran (2 left out): 2 traced to the byte" in capsys.readouterr().out
    reasons = {row["model"]: row["left_out"] for row in json.loads(out.read_text())}
    assert reasons["bert"] == "" and "language" in reasons["xmod"]
