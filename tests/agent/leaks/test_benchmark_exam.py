"""The grades of `python -m benchmarks.leaks scripts`, and its stored truth."""

from __future__ import annotations

import json

import pytest

from benchmarks.leaks import exam
from benchmarks.leaks.exam import Grade, Outcome, Truth

LEAK = Truth("A", lines=(24, 64), holders=("sum", "optimizer.state"))
CLEAN = Truth("B")
BARE = Outcome(0, "done\n", 2.0)


def outcome(*suspects: tuple[str, int, str], status: int = 0, output: str = "done\n") -> Outcome:
    rows = ({"kind": "list", "file": f, "line": at, "holder": who} for f, at, who in suspects)
    return Outcome(status, output, 3.0, tuple(rows))


def graded(*suspects: tuple[str, int, str], truth: Truth = LEAK, **facts) -> Grade:
    return exam.grade("train.py", truth, BARE, outcome(*suspects, **facts))


def test_1_the_first_suspect_locates_a_leak_at_each_accepted_line():
    assert graded(("train.py", 24, "x")).line
    assert graded(("runs/train.py", 64, "x")).line
    assert not graded(("train.py", 25, "x")).line
    assert not graded(("other.py", 24, "x")).line
    assert not graded(("train.py", 25, "x"), ("train.py", 24, "x")).line
    assert graded().line is False


def test_2_a_holder_is_named_by_a_word_of_its_own():
    assert graded(("train.py", 1, "meter.sum: Tensor")).holder
    assert graded(("train.py", 1, "trainer.optimizer.state: dict of 40")).holder
    assert not graded(("train.py", 1, "summary: list of 40")).holder
    assert not graded(("train.py", 1, "optimizer: Adam")).holder
    assert graded().holder is False


def test_3_a_script_without_a_leak_is_accused_by_any_suspect():
    row = graded(("train.py", 3, "memory: deque of 40"), truth=CLEAN)
    assert (row.accused, row.line, row.holder) == (True, None, None)
    assert not graded(truth=CLEAN).accused
    assert not graded(("train.py", 24, "x")).accused


def test_4_another_status_or_output_is_a_change():
    assert graded().unchanged
    assert not graded(status=1).unchanged
    assert not graded(output="done, nearly\n").unchanged


def test_the_summary_totals_each_half():
    grades = [graded(("train.py", 24, "sum: Tensor")), graded(), graded(truth=CLEAN)]
    heads, *halves = exam.summary(grades).splitlines()
    assert heads.split()[:6] == ["half", "leaks", "line", "holder", "clean", "accused"]
    assert [row.split() for row in halves] == [
        ["A", "2", "1", "1", "0", "0", "0", "1.50x"],
        ["B", "0", "0", "0", "1", "0", "0", "1.50x"],
    ]


def test_a_run_gives_status_output_and_processor_time(tmp_path):
    script = tmp_path / "fails.py"
    script.write_text("print(sum(range(3_000_000)))\nraise SystemExit(3)\n")
    outcome = exam.run(script, tmp_path)
    assert (outcome.status, outcome.output) == (3, "4499998500000\n")
    assert outcome.processor_s > 0
    assert outcome.suspects == ()


@pytest.mark.parametrize(
    ("exam_name", "counts"),
    [("10", [(7, 4), (7, 4)]), ("11", [(6, 4), (5, 5)]), ("12", [(6, 4), (6, 4)])],
)
def test_each_stored_script_has_its_truth(exam_name, counts):
    folder = exam.SCRIPTS / exam_name
    stored = json.loads((folder / "truth.json").read_text())
    assert sorted(stored) == sorted(path.name for path in folder.glob("*.py"))
    for name, entry in stored.items():
        lines = (folder / name).read_text().splitlines()
        assert entry["half"] in exam.HALVES
        if entry["leak"]:
            assert lines[entry["line"] - 1].strip() == entry["keeps"], name
            assert entry["line"] in entry["accepted_lines"]
            assert max(entry["accepted_lines"]) <= len(lines)
    for half, count in zip(exam.HALVES, counts, strict=True):
        of_half = [entry["leak"] for entry in stored.values() if entry["half"] == half]
        assert (of_half.count(True), of_half.count(False)) == count


def test_each_exam_has_a_folder():
    assert sorted(path.name for path in exam.SCRIPTS.iterdir()) == sorted(exam.EXAMS)


@pytest.mark.long
@pytest.mark.parametrize("name", ["10/keyword_spotting.py", "10/epoch_auroc.py", "11/meters.py"])
def test_a_stored_script_runs_to_its_end_and_is_graded(name):
    script = exam.SCRIPTS / name
    truth = exam.read_truths(script.parent.name)[script]
    row = exam.examine(script, truth)
    assert row.unchanged
    assert row.processor_s > 1
    assert (row.line, row.holder, row.accused) == (truth.leaks or None, truth.leaks or None, False)
