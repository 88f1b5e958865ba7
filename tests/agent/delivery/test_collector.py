"""The collector: rows reach the disk at every tick, and the sender in batches."""

from __future__ import annotations

import math
import threading

import pytest

from memagent.delivery import collector as collecting
from memagent.delivery.buffer import DroppedSamples, SampleBuffer
from memagent.delivery.collector import Collector
from memagent.delivery.envelope import seal
from memagent.delivery.run_file import RunFile, read_frames
from memagent.delivery.sender import Sender
from memagent.diagnostics import ErrorGuard
from memagent.wire import columns
from memagent.wire.codec import decode
from memagent.wire.columns import unpack
from memagent.wire.messages import Batch, Event, RunStart
from tests.waiting import wait_until


class Recorder:
    """Return a collector with a manual clock, and its file."""

    def __init__(self, path, refresh=lambda _: None) -> None:
        self.path = path
        self.drops, guard = DroppedSamples(), ErrorGuard(raise_errors=True)
        self.buffer = SampleBuffer("host", ("step", "allocated_bytes"), self.drops)
        self.observed_steps: list[int] = []
        self.time_left_s = math.inf
        file = RunFile(path, seal("r", RunStart(run_id="r")))
        self.sender = Sender(file, None, self.drops, guard, lambda reply: None)
        self.collector = Collector(
            "r",
            0,
            7,
            [self.buffer],
            self.sender,
            self.drops,
            guard,
            observe=self._observe,
            refresh=refresh,
            time_left_s=lambda: self.time_left_s,
        )
        self.collector.start()
        self.begun_at = self.collector._sent_at

    def _observe(self, stream, columns):
        self.observed_steps += columns["step"]

    def step(self, *numbers):
        for number in numbers:
            self.buffer.append(((number, 100 * number), None))

    def tick(self, after_s):
        self.collector._tick(self.begun_at + after_s)

    def is_sealed(self):
        """Return True if the first batch has replaced its drafts."""
        return self.collector._seq == 1

    def batches(self):
        return [decode(body, Batch) for kind, body in read_frames(self.path) if kind == "batch"]

    def steps(self):
        return [unpack(chunk.packed)["step"] for batch in self.batches() for chunk in batch.chunks]


@pytest.fixture
def recorder(tmp_path, monkeypatch):
    monkeypatch.setattr(collecting, "TICK_S", 3600.0)
    monkeypatch.setattr(collecting, "FILE_BATCH_EVERY_S", collecting.BATCH_EVERY_S)
    recorder = Recorder(tmp_path / "r.memagent")
    yield recorder
    recorder.collector.close()
    recorder.sender.close(0.0)


def test_rows_are_on_the_disk_after_the_next_tick(recorder):
    recorder.step(1, 2)
    recorder.tick(0.2)
    assert recorder.steps() == [[1, 2]]
    recorder.step(3)
    recorder.tick(0.4)
    assert recorder.steps() == [[1, 2, 3]] and recorder.observed_steps == [1, 2, 3]


def test_drafts_become_one_batch_of_the_same_rows(recorder):
    for number in range(5):
        recorder.step(number)
        recorder.tick(0.2 * number)
    drafted = recorder.batches()
    recorder.step(5)
    recorder.tick(1.0)
    recorder.step(6)
    recorder.tick(1.2)
    assert recorder.steps() == [[0, 1, 2, 3, 4, 5], [6]]
    assert [batch.seq for batch in drafted] == [0] and [
        batch.seq for batch in recorder.batches()
    ] == [0, 1]


def test_each_event_is_drafted_once(recorder):
    recorder.collector.emit(Event(kind="oom", step=1))
    recorder.tick(0.2)
    recorder.collector.emit(Event(kind="oom", step=2))
    recorder.tick(0.4)
    assert [event.step for batch in recorder.batches() for event in batch.events] == [1, 2]
    recorder.tick(1.0)
    assert [event.step for batch in recorder.batches() for event in batch.events] == [1, 2]


def test_a_busy_server_gets_batches_of_calm_ranks_later(recorder):
    recorder.collector.set_interval(20.0)
    recorder.step(1)
    recorder.tick(19.8)
    recorder.step(2)
    recorder.tick(20.0)
    recorder.step(3)
    recorder.tick(20.2)
    assert recorder.steps() == [[1, 2], [3]]


@pytest.mark.parametrize(("time_left_s", "sent_at_s"), [(0.0, 1.0), (30.0, 3.0), (150.0, 15.0)])
def test_a_batch_is_late_by_a_tenth_of_the_time_left_at_most(recorder, time_left_s, sent_at_s):
    recorder.collector.set_interval(20.0)
    recorder.time_left_s = time_left_s
    recorder.step(1)
    recorder.tick(sent_at_s - 0.2)
    assert recorder.batches()[0].seq == 0 and not recorder.is_sealed()
    recorder.tick(sent_at_s)
    assert recorder.is_sealed()


@pytest.mark.parametrize(("has_server", "sent_at_s"), [(False, 5.0), (True, 2.0)])
def test_batches_are_rarer_while_memory_is_not_about_to_run_out(
    recorder, monkeypatch, has_server, sent_at_s
):
    monkeypatch.setattr(collecting, "FILE_BATCH_EVERY_S", 5.0)
    recorder.sender.has_server = has_server
    recorder.step(1)
    recorder.tick(sent_at_s - 0.2)
    assert recorder.steps() == [[1]] and not recorder.is_sealed()
    recorder.tick(sent_at_s)
    assert recorder.is_sealed()
    recorder.time_left_s = 15.0
    recorder.step(2)
    recorder.tick(sent_at_s + 1.6)
    assert len(recorder.batches()) == 2


def test_an_event_does_not_wait_for_a_busy_server(recorder):
    recorder.collector.set_interval(20.0)
    recorder.step(1)
    recorder.collector.emit(Event(kind="oom", step=1))
    recorder.tick(1.0)
    assert recorder.is_sealed()


@pytest.mark.parametrize(
    ("requested_s", "obeyed_s"), [(0.0, 1.0), (-5.0, 1.0), (1e9, 30.0), (float("nan"), 1.0)]
)
def test_the_interval_has_bounds(recorder, requested_s, obeyed_s):
    recorder.collector.set_interval(requested_s)
    recorder.step(1)
    recorder.tick(obeyed_s - 0.2)
    assert not recorder.is_sealed()
    recorder.tick(obeyed_s)
    assert recorder.is_sealed()


def test_many_rows_become_a_batch_before_the_second_is_over(recorder):
    recorder.step(*range(500))
    recorder.tick(0.2)
    recorder.step(500)
    recorder.tick(0.4)
    assert [len(steps) for steps in recorder.steps()] == [500, 1]


def test_without_room_rows_are_buffered_then_the_newest_dropped(recorder, monkeypatch):
    monkeypatch.setattr(collecting, "MAX_PENDING_ROWS", 3)
    monkeypatch.setattr(recorder.sender, "has_room", lambda: False)
    recorder.step(*range(5))
    recorder.tick(2.0)
    assert recorder.drops == {"queue_full": 2} and not recorder.path.exists()
    monkeypatch.undo()
    recorder.tick(5.2)
    assert recorder.steps() == [[0, 1, 2]] and recorder.batches()[0].dropped_samples == {
        "queue_full": 2
    }


def test_slow_work_runs_after_rows_are_saved(recorder, monkeypatch):
    def fail(stream, columns):
        raise SystemExit  # as a kill would: nothing after it runs

    monkeypatch.setattr(recorder.collector, "_observe", fail)
    recorder.step(1)
    with pytest.raises(SystemExit):
        recorder.tick(0.2)
    assert recorder.steps() == [[1]]
    monkeypatch.undo()


def test_a_hanging_driver_does_not_delay_rows(tmp_path, monkeypatch):
    monkeypatch.setattr(collecting, "REFRESH_S", 0.0)
    monkeypatch.setattr(collecting, "TICK_S", 0.01)
    monkeypatch.setattr(collecting, "BATCH_EVERY_S", 3600.0)
    entered, released = threading.Event(), threading.Event()

    def hang(_):
        entered.set()
        released.wait()

    recorder = Recorder(tmp_path / "r.memagent", refresh=hang)
    assert entered.wait(20)
    recorder.step(1, 2)
    wait_until(lambda: recorder.path.exists() and recorder.steps() == [[1, 2]])
    monkeypatch.setattr(collecting, "STOP_TIMEOUT_S", 20.0)
    closing = threading.Thread(target=recorder.collector.close)
    recorder.step(3)
    closing.start()
    wait_until(lambda: not recorder.collector._collecting.is_alive())
    released.set()
    closing.join()
    assert (
        [batch.seq for batch in recorder.batches()] == [0]
        and recorder.steps() == [[1, 2, 3]]
        and not recorder.drops
    )
    recorder.sender.close(0.0)


def test_a_hanging_collector_is_abandoned_and_its_rows_are_counted(recorder, monkeypatch):
    monkeypatch.setattr(collecting, "STOP_TIMEOUT_S", 0.0)
    monkeypatch.setattr(recorder.collector._collecting, "is_alive", lambda: True)
    recorder.step(1, 2, 3)
    recorder.collector.close()
    assert recorder.drops == {"not_delivered_at_exit": 3}


def test_closing_collects_the_remaining_rows(recorder):
    recorder.step(1, 2)
    recorder.collector.close()
    assert recorder.steps() == [[1, 2]] and recorder.observed_steps == [1, 2]


def test_rows_and_events_stay_while_there_is_no_memory_for_a_batch(recorder, monkeypatch):
    recorder.step(1)
    recorder.collector.emit(Event(kind="oom", step=1))

    def fail(*_arguments, **_options):
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(collecting, "pack_chunk", fail)
        with pytest.raises(MemoryError):
            recorder.tick(1.0)
    recorder.step(2)
    recorder.tick(1.2)
    (batch,) = recorder.batches()
    assert recorder.steps() == [[1, 2]] and [event.step for event in batch.events] == [1]
    assert batch.seq == 0 and recorder.drops == {}


def test_the_last_batch_needs_no_memory_to_compress_it(recorder, monkeypatch):
    def compress(raw, codec):
        if codec != "none":
            raise MemoryError
        return raw

    monkeypatch.setattr(columns, "_compress", compress)
    recorder.step(1, 2)
    recorder.collector.emit(Event(kind="oom", step=2))
    recorder.collector.close()
    (batch,) = recorder.batches()
    assert recorder.steps() == [[1, 2]] and [event.kind for event in batch.events] == ["oom"]
