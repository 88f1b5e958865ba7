"""Imports of a run that grows, is rewritten, or is uploaded between two imports.

Tests are named after the numbers of `run_folder`.
"""

from __future__ import annotations

import fcntl

import pytest

from memagent.delivery.run_file import read_frames
from memagent.errors import MemagentError
from memagent.importer import run_folder
from memagent.importer.run_folder import RunFolder
from memagent.importer.source_run import SourceRun
from memagent.wire.codec import decode
from memagent.wire.columns import unpack
from memagent.wire.messages import Batch, Finish, RunStart


def make_run(steps, *, status=None, factor=1.0, readings=0):
    run = SourceRun("wandb", None, key="k", name="n", started_at=1e9, status=status)
    for step in range(steps):
        run.scalars.add("loss", step, 1e9 + step, factor * step)
        if step % 3 == 0:
            run.scalars.add("val", step // 3, 1e9 + step, 1.0)
    for number in range(readings):
        run.devices.add("gpu0", "device_used_bytes", 1e9 + number, number)
    return run


def put(folder, run, next_seq=None):
    """Import a run; return its plan and whether anything was new."""
    target = RunFolder(folder)
    plan = target.plan(run, "p", next_seq)
    return plan, target.write(run, "p", plan)


def content(path):
    """Return start, batches and finishes of a run file."""
    frames = list(read_frames(path))
    kinds = {"start": RunStart, "batch": Batch, "finish": Finish}
    return [[decode(body, kinds[kind]) for k, body in frames if k == kind] for kind in kinds]


def steps_of(path, name="loss", stream="scalars"):
    _, batches, _ = content(path)
    chunks = [(c.stream, unpack(c.packed)) for batch in batches for c in batch.chunks]
    return [
        step
        for of_stream, columns in chunks
        if of_stream == stream
        for step, value in zip(columns["step"], columns.get(name, ()), strict=False)
        if value is not None
    ]


def test_a_second_import_of_the_same_adds_nothing(tmp_path):
    plan, is_new = put(tmp_path, make_run(10, status="completed"))
    before = plan.path.read_bytes()
    again, is_new_again = put(tmp_path, make_run(10, status="completed"))
    assert (is_new, is_new_again) == (True, False)
    assert again.path == plan.path and plan.path.read_bytes() == before


def test_1_a_run_that_has_grown_gets_more_batches_in_its_file(tmp_path):
    first, _ = put(tmp_path, make_run(10, readings=5))
    second, is_new = put(tmp_path, make_run(25, status="completed", readings=7))
    assert is_new and second.path == first.path
    (start,), batches, (finish,) = content(first.path)
    assert [batch.seq for batch in batches] == list(range(len(batches)))
    assert {item.attempt for item in [start, *batches, finish]} == {first.attempt}
    assert steps_of(first.path) == list(range(25))
    assert sorted(steps_of(first.path, "val")) == list(range(9))
    assert len(steps_of(first.path, "device_used_bytes", "gpu0")) == 7


def test_1_without_its_file_the_new_batches_are_a_file_of_their_own(tmp_path):
    first, _ = put(tmp_path, make_run(10))
    _, batches, _ = content(first.path)
    first.path.unlink()
    put(tmp_path, make_run(25))
    _, more, _ = content(first.path)
    assert more[0].seq == len(batches) and steps_of(first.path) == list(range(10, 25))


def test_1_an_end_without_points_is_new(tmp_path):
    put(tmp_path, make_run(10))
    plan, is_new = put(tmp_path, make_run(10, status="failed"))
    assert is_new and content(plan.path)[2][0].status == "failed"


def test_2_a_run_that_was_rewritten_is_a_later_attempt(tmp_path):
    first, _ = put(tmp_path, make_run(10))
    second, is_new = put(tmp_path, make_run(10, factor=2.0))
    assert is_new and second.attempt > first.attempt and second.note == run_folder.REWRITTEN
    assert first.path.exists() and steps_of(second.path) == list(range(10))


@pytest.mark.parametrize(
    ("stored", "expected"), [(None, "new"), (1, "new"), (0, "all"), (7, "launch")]
)
def test_2_what_the_server_has_decides_what_is_sent(tmp_path, stored, expected):
    first, _ = put(tmp_path, make_run(10))
    first.path.unlink()
    plan, _ = put(tmp_path, make_run(25), lambda start: stored)
    assert steps_of(plan.path) == list(range(10 if expected == "new" else 0, 25))
    assert (plan.attempt > first.attempt) == (expected == "launch")
    assert plan.note == (run_folder.OTHER_PART if expected == "launch" else None)


def test_3_batches_that_no_watermark_covers_are_replaced(tmp_path):
    put(tmp_path, make_run(10))
    (mark,) = (tmp_path / "imported").iterdir()
    before = mark.read_bytes()
    put(tmp_path, make_run(15))
    mark.write_bytes(before)  # as if killed before it was written
    plan, _ = put(tmp_path, make_run(25))
    assert steps_of(plan.path) == list(range(25))
    assert [batch.seq for batch in content(plan.path)[1]] == [0, 1]


@pytest.mark.parametrize("damage", [b"", b"{", b'{"attempt": "x"}', b"[" * 100_000], ids=range(4))
def test_without_a_readable_watermark_the_same_file_is_written(tmp_path, damage):
    first, _ = put(tmp_path, make_run(10))
    before = first.path.read_bytes()
    (mark,) = (tmp_path / "imported").iterdir()
    mark.write_bytes(damage)
    second, _ = put(tmp_path, make_run(10))
    assert second.path == first.path and first.path.read_bytes() == before


def test_a_file_that_is_uploaded_is_left_alone(tmp_path):
    plan, _ = put(tmp_path, make_run(10))
    with plan.path.open("rb+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(MemagentError, match="is being uploaded: import again"):
            put(tmp_path, make_run(11))


def test_a_folder_that_cannot_be_written_is_an_error_of_one_sentence(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(MemagentError, match=r"cannot be written: (Not a directory|File exists)"):
        put(tmp_path / "file", make_run(3))
