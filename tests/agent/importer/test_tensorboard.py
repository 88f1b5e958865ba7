"""Event files that torch's SummaryWriter and TensorBoard's own writer have written."""

from __future__ import annotations

import math
import os
import shutil
import struct
import tracemalloc

import pytest

from memagent.importer.record_logs import RECORD_BYTES
from tests.agent.importer.conftest import needed, values_of


def events_of(folder):
    return max(folder.glob("events.*"), key=lambda path: path.stat().st_size)


def write_events(path, events):
    """Write events as TensorBoard's own writer does."""
    from tensorboard.summary.writer.record_writer import RecordWriter

    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        writer = RecordWriter(file)
        for event in events:
            writer.write(event if isinstance(event, bytes) else event.SerializeToString())
        writer.flush()


def write_unchecked(path, events):
    """Write large events fast: their own checksums aren't read."""
    from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import masked_crc32c

    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        for event in events:
            body = event.SerializeToString()
            length = struct.pack("<Q", len(body))
            file.write(length + struct.pack("<I", masked_crc32c(length)) + body + bytes(4))


def scalar_event(values, step=1, time_s=1e9):
    from tensorboard.compat.proto.event_pb2 import Event

    event = Event(step=step, wall_time=time_s)
    for tag, value in values.items():
        event.summary.value.add(tag=tag, simple_value=value)
    return event


@pytest.fixture
def event_file(tmp_path):
    needed("tensorboard")
    return tmp_path / "logs" / "events.out.tfevents.1.box.7.0"


def test_a_folder_is_a_run_with_its_scalars_and_hyperparameters(event_folder, read):
    ((run,), problems) = read("tensorboard", event_folder.parent)
    assert problems == [] and run.notes == []
    assert (run.name, run.status, run.host is not None) == ("first", "completed", True)
    assert run.config == {"lr": pytest.approx(0.1), "model": "resnet", "amp": True}
    assert values_of(run, "train/loss")[9] == pytest.approx(0.1)
    assert len(values_of(run, "accuracy/val")) == 10
    assert values_of(run, "hparam/best") == {0: pytest.approx(0.3)}
    assert run.skipped == {"text": 1, "histogram": 1}
    assert 0 < run.started_at <= run.last_time_s


def test_its_scalars_are_those_that_tensorboards_own_reader_finds(event_folder, read):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    theirs = EventAccumulator(str(event_folder), size_guidance={"scalars": 0})
    theirs.Reload()
    ((run,), _) = read("tensorboard", event_folder)
    expected = {event.step: event.value for event in theirs.Scalars("train/loss")}
    assert values_of(run, "train/loss") == expected


def test_the_id_stays_when_the_folder_moves_and_the_run_grows(event_folder, read, tmp_path):
    from torch.utils.tensorboard import SummaryWriter

    ((before,), _) = read("tensorboard", event_folder)
    moved = shutil.copytree(event_folder, tmp_path / "elsewhere")
    with SummaryWriter(str(moved), filename_suffix=".later") as writer:
        writer.add_scalar("train/loss", 0.0, 100)
    ((after,), _) = read("tensorboard", moved)
    assert after.key == before.key
    assert after.scalars.extends(before.scalars.extents())
    assert len(after.scalars) == len(before.scalars) + 1


def test_a_torn_file_gives_what_it_has(event_folder, read):
    file = events_of(event_folder)
    size = file.stat().st_size
    os.truncate(file, size - 5)
    ((run,), problems) = read("tensorboard", event_folder)
    (note,) = run.notes
    assert str(file) in note and "torn" in note
    assert len(values_of(run, "train/loss")) == 100 and problems == []


def test_a_length_of_gigabytes_is_not_believed(event_folder, read):
    from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import masked_crc32c

    length = struct.pack("<Q", 8 * 2**30)
    with events_of(event_folder).open("ab") as file:
        file.write(length + struct.pack("<I", masked_crc32c(length)) + b"x" * 100)
    ((run,), _) = read("tensorboard", event_folder)
    assert "torn" in run.notes[0] and len(values_of(run, "train/loss")) == 100


def test_a_damaged_record_costs_itself(event_folder, read):
    file = events_of(event_folder)
    content = bytearray(file.read_bytes())
    at = content.index(b"train/loss", 2_000)
    content[at] ^= 0xFF
    file.write_bytes(content)
    ((run,), _) = read("tensorboard", event_folder)
    assert run.skipped["damaged record"] == 1 and len(values_of(run, "train/loss")) == 99


def test_values_that_are_no_numbers_and_odd_names_are_kept(event_file, read):
    values = {
        "nan": math.nan,
        "inf": math.inf,
        "a\x1b[31m\nb": 1.0,
        "损失": 2.0,
        "": 3.0,
        "step": 4.0,
    }
    write_events(event_file, [scalar_event(values)])
    ((run,), _) = read("tensorboard", event_file)
    (block,) = run.scalars.blocks()
    assert math.isnan(block["nan"][0]) and block["inf"] == [math.inf]
    assert [block[name] for name in ("a__31m_b", "_损失", "_", "_step")] == [[1], [2], [3], [4]]


def test_tags_without_end_are_left_out_after_the_first(event_file, read):
    events = (
        scalar_event({f"{first + number}": 1.0 for number in range(1000)}, step=first)
        for first in range(0, 100_000, 1000)
    )
    write_unchecked(event_file, events)
    tracemalloc.start()
    ((run,), _) = read("tensorboard", event_file)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(run.scalars.names) == 2_000
    assert run.left_out() == {"points of scalars after the first 2,000": 98_000}
    assert peak < 8 * 2**20


def test_a_record_of_many_empty_values_is_bounded(event_file, read):
    """Each two bytes become an object of 90: 16 MiB would take 700 MiB."""
    bomb = b"\x0a\x00" * (RECORD_BYTES // 2)
    length = b"\x2a" + bytes([len(bomb) & 127 | 128, len(bomb) >> 7 & 127 | 128, len(bomb) >> 14])
    write_events(
        event_file, [scalar_event({"loss": 1.0}), length + bomb, scalar_event({"loss": 2.0}, 2)]
    )
    ((run,), _) = read("tensorboard", event_file)
    assert run.skipped == {"record over 2 MiB": 1}
    assert values_of(run, "loss") == {1: 1.0, 2: 2.0}


def test_links_out_of_the_folder_are_not_followed(event_folder, read, tmp_path):
    outside = shutil.copytree(event_folder, tmp_path / "outside")
    inside = tmp_path / "inside"
    inside.mkdir()
    (inside / "folder").symlink_to(outside)
    (inside / "events.out.tfevents.2.box").symlink_to(events_of(outside))
    os.mkfifo(inside / "events.out.tfevents.3.box")
    assert read("tensorboard", inside) == ([], [])


def test_a_file_that_is_none_is_a_problem_and_others_are_read(event_folder, read):
    (event_folder.parent / "events.out.tfevents.1.box").write_bytes(b"no events at all, but text")
    (empty, full), _ = read("tensorboard", event_folder.parent)
    assert "damaged at byte 0" in empty.notes[0]
    assert len(values_of(full, "train/loss")) == 100
