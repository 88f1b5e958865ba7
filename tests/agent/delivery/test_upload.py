"""Uploads of run files, against a fake server that accepts each batch once."""

from __future__ import annotations

import os
import threading

import pytest

from memagent.delivery import upload as uploading
from memagent.delivery.envelope import Transport, seal
from memagent.delivery.run_file import RunFile
from memagent.delivery.upload import find_files, upload
from memagent.errors import DeliveryError, RejectedError, StartRequiredError
from memagent.wire.codec import decode, encode
from memagent.wire.columns import pack
from memagent.wire.messages import Batch, BatchReply, Chunk, Finish, RunStart


class FarEnd(Transport):
    """Store messages by key, and raise `troubles` first, one after another."""

    def __init__(self) -> None:
        self.starts, self.finishes, self.batches, self.kinds = [], [], {}, []
        self.troubles: list[Exception | None] = []

    def deliver(self, item, *, timeout_s):
        self.kinds.append(item.kind)
        if self.troubles and (trouble := self.troubles.pop(0)) is not None:
            raise trouble
        if item.kind == "start":
            self.starts.append(decode(item.body, RunStart))
        elif item.kind == "finish":
            self.finishes.append(decode(item.body, Finish))
        else:
            batch = decode(item.body, Batch)
            assert self.batches.setdefault(batch.seq, item.body) == item.body
            missing = next(seq for seq in range(10**6) if seq not in self.batches)
            return BatchReply(accepted=1, next_seq=missing)
        return None


@pytest.fixture
def far_end():
    return FarEnd()


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch):
    monkeypatch.setattr(uploading, "FIRST_DELAY_S", 0.0)


@pytest.fixture
def make_file(tmp_path):
    """A run file whose process is gone."""

    def make(batches=3, *, run_id="r", rank=0, attempt=1, finish="completed", drafts=0):
        start = seal(
            run_id, RunStart(run_id=run_id, rank=rank, attempt=attempt, world_size=rank + 1)
        )
        file = RunFile(tmp_path / f"{run_id}-rank{rank}-{attempt}.memagent", start)
        for seq in range(batches):
            chunk = Chunk(stream="host", packed=pack({"step": [2 * seq, 2 * seq + 1]}))
            file.append(seal(run_id, Batch(rank=rank, attempt=attempt, seq=seq, chunks=[chunk])))
        for number in range(drafts):
            chunk = Chunk(stream="host", columns={"step": [2 * batches + number]})
            file.draft(encode(Batch(rank=rank, attempt=attempt, seq=batches, chunks=[chunk])))
        if finish:
            file.append(seal(run_id, Finish(status=finish, rank=rank, attempt=attempt)))
        file.close()
        return file.path

    return make


def upload_one(path, transport, **options):
    (result,) = find_files([path])
    return upload(result, transport, **options)


def test_everything_arrives_and_the_file_is_removed(make_file, far_end):
    path = make_file()
    done = upload_one(path, far_end)
    assert (done.outcome, done.run_id, done.parcels, done.samples, done.status) == (
        "uploaded",
        "r",
        5,
        6,
        "completed",
    )
    assert (
        far_end.kinds == ["start", "batch", "batch", "batch", "finish"]
        and not path.exists()
        and done.notes == []
    )


def test_it_reports_its_progress(make_file, far_end):
    path = make_file()
    size_bytes, sizes = path.stat().st_size, list[int]()
    upload_one(path, far_end, advance=sizes.append)
    assert len(sizes) == 5 and min(sizes) > 0 and 0.8 * size_bytes < sum(sizes) <= size_bytes


def test_a_run_without_a_recorded_end_is_not_finished(make_file, far_end):
    done = upload_one(make_file(finish=None, drafts=2), far_end)
    assert done.status is None and far_end.finishes == [] and done.samples == 8
    assert sorted(far_end.batches) == [0, 1, 2, 3]


def test_keep_renames_the_file_to_synced(make_file, far_end):
    path = make_file()
    done = upload_one(path, far_end, keep=True)
    assert not path.exists() and done.path.name == path.name + ".synced"
    assert find_files([path.parent]) == []
    assert upload_one(done.path, far_end, keep=True).outcome == "uploaded" and done.path.exists()


@pytest.mark.parametrize("interruption", [KeyboardInterrupt(), SystemExit()])
@pytest.mark.parametrize("after", range(5))
def test_an_interrupted_upload_restarts_without_duplicates(make_file, far_end, interruption, after):
    path = make_file(finish=None, drafts=2)
    far_end.troubles = [None] * after + [interruption]
    with pytest.raises(type(interruption)):
        upload_one(path, far_end)
    assert path.exists()
    assert upload_one(path, far_end).outcome == "uploaded" and sorted(far_end.batches) == [
        0,
        1,
        2,
        3,
    ]


def test_stored_envelopes_are_skipped(make_file, far_end):
    path = make_file(batches=50)
    far_end.troubles = [None] * 41 + [KeyboardInterrupt()]
    with pytest.raises(KeyboardInterrupt):
        upload_one(path, far_end)
    far_end.kinds.clear()
    assert upload_one(path, far_end).samples == 100
    assert far_end.kinds == ["start", *["batch"] * 11, "finish"]


def test_a_temporary_server_error_is_retried(make_file, far_end):
    far_end.troubles = [
        DeliveryError("busy"),
        DeliveryError("busy", retry_after_s=0),
        None,
        DeliveryError("busy"),
    ]
    assert upload_one(make_file(), far_end).outcome == "uploaded" and len(far_end.batches) == 3


def test_an_unreachable_server_changes_nothing(make_file, far_end):
    path = make_file()
    before = path.read_bytes()
    far_end.troubles = [None] + [DeliveryError("away")] * 10
    done = upload_one(path, far_end)
    assert done.outcome == "waiting" and done.notes == ["away"] and path.read_bytes() == before


def test_a_run_deleted_during_the_upload_is_started_again(make_file, far_end):
    far_end.troubles = [None, StartRequiredError("who?")]
    assert upload_one(make_file(), far_end).outcome == "uploaded"
    assert far_end.kinds[:4] == ["start", "batch", "start", "batch"]


def test_a_refused_envelope_preserves_the_file_and_the_others_are_sent(make_file, far_end):
    path = make_file()
    far_end.troubles = [None, RejectedError("never")]
    done = upload_one(path, far_end)
    assert (
        (done.outcome, done.refused) == ("refused", 1)
        and path.exists()
        and sorted(far_end.batches) == [1, 2]
    )
    assert done.notes == [
        "never",
        "the server lacks batch 0: it was lost before it reached the disk, or refused",
    ]


def test_a_refused_start_ends_the_upload(make_file, far_end):
    path = make_file()
    far_end.troubles = [RejectedError("never")]
    done = upload_one(path, far_end)
    assert (
        done.outcome == "refused"
        and done.notes == ["never"]
        and far_end.kinds == ["start"]
        and path.exists()
    )


def test_a_truncated_file_is_reported_and_never_deleted(make_file, far_end):
    path = make_file()
    os.truncate(path, path.stat().st_size - 3)
    done = upload_one(path, far_end)
    assert done.outcome == "uploaded" and done.path.exists() and done.path.suffix == ".synced"
    assert done.status is None and "torn or damaged" in done.notes[0] and len(far_end.batches) == 3


def test_an_invalid_file_is_reported_and_the_others_are_uploaded(make_file, far_end, tmp_path):
    good = make_file()
    (tmp_path / "bad.memagent").write_text("hello")
    (tmp_path / "torn.memagent").write_bytes(good.read_bytes()[:25])
    outcomes = {file.path.name: upload(file, far_end).outcome for file in find_files([tmp_path])}
    assert outcomes == {
        "bad.memagent": "unreadable",
        "torn.memagent": "unreadable",
        good.name: "uploaded",
    }


def test_files_are_uploaded_by_age_and_not_by_name(make_file, tmp_path):
    for attempt, rank in ((10, 0), (9, 1), (9, 0), (100, 0)):
        make_file(rank=rank, attempt=attempt)
    assert [(one.attempt, one.rank) for one in find_files([tmp_path])] == [
        (9, 0),
        (9, 1),
        (10, 0),
        (100, 0),
    ]


def test_a_file_of_a_living_process_is_skipped(tmp_path, far_end):
    file = RunFile(tmp_path / "r.memagent", seal("r", RunStart(run_id="r")))
    file.append(seal("r", Batch(seq=0)))
    done = upload_one(file.path, far_end)
    assert done.outcome == "in_use" and far_end.kinds == [] and "still active" in done.notes[0]
    file.close()
    assert upload_one(file.path, far_end).outcome == "uploaded"


def test_one_of_two_concurrent_uploads_sends_a_file(make_file):
    path = make_file(batches=200)
    far_ends = [FarEnd(), FarEnd()]
    done = []
    both = [
        threading.Thread(
            target=lambda end, file: done.append(upload(file, end)),
            args=(end, find_files([path])[0]),
        )
        for end in far_ends
    ]
    for thread in both:
        thread.start()
    for thread in both:
        thread.join()
    assert sorted(len(end.batches) for end in far_ends) == [0, 200] and not path.exists()
    assert {one.outcome for one in done} <= {"uploaded", "in_use"}


def test_a_file_uploaded_by_another_process_is_not_an_error(make_file, far_end):
    path = make_file()
    (result,) = find_files([path])
    path.unlink()
    assert upload(result, far_end).notes == ["another sync has uploaded it"] and far_end.kinds == []


def test_without_a_transport_it_only_counts(make_file):
    path = make_file()
    done = upload_one(path, None)
    assert (done.outcome, done.samples, done.status) == (
        "waiting",
        6,
        "completed",
    ) and path.exists()
