"""The last lines that ranks have printed.

1. Lines are stored in blocks of BLOCK_LINES numbers: one of a progress bar, which changes with
   every batch, is replaced in its block. A batch that comes late replaces nothing.
2. Of each rank and attempt the newest blocks are kept, up to MAX_CONSOLE_SIZE and MAX_BLOCKS.
3. Lines go with the samples of an old run (`store/retention.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sqlalchemy import ColumnElement, Connection, delete, func, select
from sqlalchemy.orm import Session

from memagent.wire.console import LINE_OVERHEAD, MAX_CONSOLE_SIZE, tail_of
from memagent.wire.messages import ConsoleLine
from memagent_server.schemas import runs as schemas
from memagent_server.store.batch_rows import BatchKey
from memagent_server.store.models import ConsoleRow, RankRow
from memagent_server.store.reading import iso
from memagent_server.store.statements import upsert_all

BLOCK_LINES = 32
MAX_BLOCKS = 128
"""More are lines with gaps, of a sender that isn't an agent."""
DEATHS = ("failed", "oom", "lost_contact")
_Lines = dict[int, ConsoleLine]


def add_lines(connection: Connection, key: BatchKey, lines: Sequence[ConsoleLine]) -> None:
    """Store the lines of a batch. The run's row must be locked."""
    new: dict[int, _Lines] = {}
    for line in tail_of(sorted(lines, key=lambda line: line.number)):
        new.setdefault(line.number // BLOCK_LINES, {})[line.number] = line
    new = dict(sorted(new.items())[-MAX_BLOCKS:])
    of_rank = _of_rank(key.run_id, key.rank, key.attempt)
    with Session(connection) as session:
        is_known = (*of_rank, ConsoleRow.block.in_(list(new)))
        known = {row.block: row for row in session.scalars(select(ConsoleRow).where(*is_known))}
        rows = [_row(key, block, lines, known.get(block)) for block, lines in new.items()]
        upsert_all(session, ConsoleRow, rows, update=("seq", "size", "text", "marks"))
        if len(known) < len(new):  # most batches only change the newest block
            _trim(session, of_rank)


def console_of(
    session: Session, run_id: str, *, rank: int | None = None, last: int | None = None
) -> schemas.Console:
    """Return the lines of a rank's newest attempt, by default of the rank that died or has any."""
    query = (
        select(ConsoleRow.rank, func.max(ConsoleRow.attempt), RankRow.status, RankRow.finished_at)
        .join(
            RankRow,
            (RankRow.run_id == ConsoleRow.run_id)
            & (RankRow.rank == ConsoleRow.rank)
            & (RankRow.attempt == ConsoleRow.attempt),
        )
        .where(ConsoleRow.run_id == run_id, RankRow.is_current)
        .group_by(ConsoleRow.rank, RankRow.status, RankRow.finished_at)
    )
    by_rank = {row[0]: row[1:] for row in session.execute(query)}
    ranks = sorted(by_rank)
    if rank is None:
        # the first that died took the others with it
        dead = (number for number in ranks if by_rank[number][1] in DEATHS)
        rank = min(dead, key=lambda number: (by_rank[number][2] or 0.0, number), default=None)
        rank = next(iter(ranks), 0) if rank is None else rank
    lines = list(_read(session, run_id, rank, by_rank[rank][0])) if rank in by_rank else []
    return schemas.Console(run_id, rank, ranks, lines if last is None else lines[-last:])


def delete_lines(session: Session, run_id: str) -> None:
    session.execute(delete(ConsoleRow).where(ConsoleRow.run_id == run_id))


def _read(session: Session, run_id: str, rank: int, attempt: int) -> Iterator[schemas.OutputLine]:
    query = select(ConsoleRow).where(*_of_rank(run_id, rank, attempt)).order_by(ConsoleRow.block)
    lines = [line for row in session.scalars(query) for line in _lines(row).values()]
    for line in tail_of(lines):
        at = iso(line.time_s) or ""
        yield schemas.OutputLine(line.number, line.text, line.stream, line.step, at)


def _row(key: BatchKey, block: int, new: _Lines, row: ConsoleRow | None) -> dict[str, object]:
    old = _lines(row) if row is not None else {}
    is_late = row is not None and row.seq > key.seq
    lines = dict(sorted((new | old if is_late else old | new).items()))
    return {
        "run_id": key.run_id,
        "rank": key.rank,
        "attempt": key.attempt,
        "block": block,
        "seq": max(key.seq, row.seq if row is not None else 0),
        "size": sum(len(line.text) + LINE_OVERHEAD for line in lines.values()),
        "text": "\n".join(line.text for line in lines.values()),
        "marks": [
            [line.number, line.time_s, line.step, int(line.stream == "stderr")]
            for line in lines.values()
        ],
    }


def _lines(row: ConsoleRow) -> _Lines:
    return {
        number: ConsoleLine(
            number=number,
            text=text,
            stream="stderr" if is_error else "stdout",
            step=step,
            time_s=time_s,
        )
        for text, (number, time_s, step, is_error) in zip(
            row.text.split("\n"), row.marks, strict=True
        )
    }


def _trim(session: Session, of_rank: Sequence[ColumnElement[bool]]) -> None:
    sizes = select(ConsoleRow.block, ConsoleRow.size).where(*of_rank)
    room = MAX_CONSOLE_SIZE
    rows = session.execute(sizes.order_by(ConsoleRow.block.desc()))
    for index, (block, size) in enumerate(rows):
        if room <= 0 or index == MAX_BLOCKS:
            session.execute(delete(ConsoleRow).where(*of_rank, ConsoleRow.block <= block))
            return
        room -= size


def _of_rank(run_id: str, rank: int, attempt: int) -> tuple[ColumnElement[bool], ...]:
    return ConsoleRow.run_id == run_id, ConsoleRow.rank == rank, ConsoleRow.attempt == attempt
