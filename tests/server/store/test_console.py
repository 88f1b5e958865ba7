"""Lines of consoles on SQLite and PostgreSQL: replaced by number, bounded, deleted with samples."""

from __future__ import annotations

import pytest
from sqlalchemy import func, select

from memagent.wire.messages import Batch, ConsoleLine, Finish, RunStart
from memagent_server.store.console import MAX_BLOCKS, console_of
from memagent_server.store.models import ConsoleRow
from memagent_server.store.retention import delete_samples
from memagent_server.store.runs import delete_run, finish_run, start_run
from memagent_server.store.samples import add_batch


class Sender:
    """A run that prints."""

    def __init__(self, database) -> None:
        self.database = database
        self.seqs: dict[int, int] = {}
        self.start(0)

    def start(self, rank: int, attempt: int = 0) -> None:
        message = RunStart(run_id="r", rank=rank, attempt=attempt, world_size=4)
        with self.database.write() as session:
            start_run(session, message, 1.0)

    def send(self, *lines: tuple[int, str], rank: int = 0, seq: int | None = None) -> None:
        seq = self.seqs.get(rank, 0) if seq is None else seq
        console = [ConsoleLine(number=number, text=text, time_s=9.0) for number, text in lines]
        with self.database.write() as session:
            add_batch(session, "r", Batch(seq=seq, rank=rank, console=console), 2.0)
        self.seqs[rank] = max(seq + 1, self.seqs.get(rank, 0))

    def finish(self, rank: int, status: str, now: float = 3.0) -> None:
        with self.database.write() as session:
            finish_run(session, "r", Finish(status=status, rank=rank), now)

    def lines(self, rank: int | None = None, last: int | None = None) -> list[tuple[int, str]]:
        with self.database.read() as session:
            console = console_of(session, "r", rank=rank, last=last)
        return [(line.number, line.text) for line in console.lines]

    def rows(self) -> int:
        with self.database.read() as session:
            return session.scalar(select(func.count()).select_from(ConsoleRow))


@pytest.fixture
def sender(database) -> Sender:
    return Sender(database)


def test_1_a_line_replaces_that_with_its_number(sender):
    sender.send((0, "start"), (1, "10%"))
    sender.send((1, "20%"), (2, "loss"))
    sender.send((1, "30%"), (100, "end"))
    assert sender.lines() == [(0, "start"), (1, "30%"), (2, "loss"), (100, "end")]
    assert sender.lines(last=1) == [(100, "end")]


def test_1_a_batch_that_comes_late_replaces_nothing(sender):
    sender.send((0, "new"), seq=1)
    sender.send((0, "old"), (1, "missing"), seq=0)
    assert sender.lines() == [(0, "new"), (1, "missing")]


def test_a_repeated_batch_changes_nothing(sender):
    sender.send((0, "a"), seq=0)
    sender.send((0, "b"), seq=1)
    sender.send((0, "a"), seq=0)
    assert sender.lines() == [(0, "b")]


def test_2_the_newest_64_kib_are_kept(sender):
    for part in range(10):
        sender.send(*((part * 500 + n, f"{part} {n:090}") for n in range(500)))
    lines = sender.lines()
    assert lines[-1][0] == 4_999 and len(lines) == 65_536 // (92 + 32)
    assert sender.rows() < 20


def test_2_lines_with_gaps_of_a_hostile_sender_are_bounded(sender):
    for part in range(3):
        sender.send(*((2**40 * part + n * 1_000_003, "") for n in range(2_048)))
    assert sender.rows() <= MAX_BLOCKS


def test_the_rank_that_died_first_is_shown(sender):
    for rank in range(1, 4):
        sender.start(rank)
    sender.send((0, "zero"))
    assert sender.lines() == [(0, "zero")]
    sender.send((0, "two"), rank=2)
    sender.send((0, "three"), rank=3)
    sender.finish(3, "failed", 5.0)
    sender.finish(2, "oom", 6.0)
    assert sender.lines() == [(0, "three")] and sender.lines(rank=2) == [(0, "two")]
    assert sender.lines(rank=1) == []


def test_3_lines_go_with_the_samples_and_with_the_run(sender, database):
    sender.send((0, "a"))
    sender.finish(0, "completed")
    delete_samples(database, "r", 2.0)
    assert sender.rows() == 1  # it ended later
    delete_samples(database, "r", 10.0)
    assert sender.rows() == 0
    sender.start(0, attempt=1)
    with database.write() as session:
        batch = Batch(seq=0, attempt=1, console=[ConsoleLine(number=0, text="again")])
        add_batch(session, "r", batch, 12.0)
    assert sender.lines() == [(0, "again")]
    with database.write() as session:
        delete_run(session, "r")
    assert sender.rows() == 0
