"""The spool keeps order and limits, whether or not the disk is writable."""

from __future__ import annotations

import os

import pytest

from memagent.delivery import spool
from memagent.delivery.buffer import DroppedSamples
from memagent.delivery.envelope import seal
from memagent.delivery.run_file import RunFile, read_frames
from memagent.delivery.spool import Spool
from memagent.probe.host_limits import file_id
from memagent.wire.codec import decode
from memagent.wire.messages import Batch, RunStart


@pytest.fixture
def drops():
    return DroppedSamples()


@pytest.fixture
def file(tmp_path):
    file = RunFile(tmp_path / "runs" / "r.memagent", seal("r", RunStart(run_id="r")))
    yield file
    file.close()


@pytest.fixture
def make_spool(file, drops):
    return lambda is_destination=False: Spool(file, drops, is_destination=is_destination)


def batch(seq, samples=10):
    return seal("r", Batch(seq=seq), samples)


def take_all(queue):
    seqs = []
    while (item := queue.head()) is not None:
        seqs.append(decode(item.body, Batch).seq)
        queue.pop()
    return seqs


def test_envelopes_are_read_in_their_order(make_spool):
    queue = make_spool()
    for seq in range(3):
        queue.put(batch(seq, samples=seq))
    assert queue.samples_on_disk == 3 and queue.head() == batch(0, 0)
    assert take_all(queue) == [0, 1, 2] and len(queue) == 0


def test_the_file_shrinks_after_complete_delivery(make_spool, file):
    queue = make_spool()
    queue.put(batch(0))
    size = file.path.stat().st_size
    for seq in range(1, 100):
        queue.put(batch(seq))
        queue.pop()
    queue.pop()
    queue.put(batch(100))
    assert file.path.stat().st_size <= size + 2


def test_a_temporary_disk_failure_does_not_change_the_order(make_spool, file):
    queue = make_spool()
    queue.put(batch(0))
    folder = file.path.parent
    working = file._fd, file._identity
    broken = os.open(os.devnull, os.O_RDONLY)  # a disk that takes nothing
    file._fd, file._identity = broken, file_id(broken)
    queue.put(batch(1))
    queue.put(batch(2))
    assert queue.samples_in_memory == 20 and "cannot write" in queue.trouble
    os.close(broken)
    file._fd, file._identity = working
    queue.put(batch(3))
    assert queue.samples_in_memory == 0 and queue.trouble is None
    assert take_all(queue) == [0, 1, 2, 3] and list(folder.iterdir()) == [file.path]


def test_a_full_file_has_no_room_and_loses_nothing(make_spool, monkeypatch):
    monkeypatch.setattr(spool, "MAX_FILE_BYTES", 500)
    queue = make_spool()
    count = 0
    while queue.has_room():
        queue.put(batch(count))
        count += 1
    assert 0 < count < 100 and take_all(queue) == list(range(count)) and queue.has_room()


def test_a_recording_without_a_server_is_not_bounded(make_spool, monkeypatch, file):
    monkeypatch.setattr(spool, "MAX_FILE_BYTES", 500)
    queue = make_spool(is_destination=True)
    for seq in range(100):
        queue.put(batch(seq))
    assert queue.has_room() and len(queue) == 0
    queue.close()
    assert len(list(read_frames(file.path))) == 101


def test_damaged_envelopes_are_counted_and_the_others_delivered(make_spool, file, drops):
    queue = make_spool()
    queue.put(batch(0, samples=3))
    queue.put(batch(1, samples=4))
    os.truncate(file.path, file.first + 5)
    assert queue.head() is None and drops == {"spool_damaged": 7}
    queue.put(batch(2))
    assert take_all(queue) == [2]


@pytest.mark.parametrize("has_arrived", [False, True])
def test_closing_preserves_the_file_only_if_envelopes_remain(make_spool, file, has_arrived):
    queue = make_spool()
    queue.put(batch(0))
    if has_arrived:
        queue.pop()
    queue.close()
    assert file.path.exists() is not has_arrived
