"""Rollups of a stream: levels of buckets, each bucket twice as long as one of the level below.

Any chart reads about as many buckets as it has points.

1. A bucket of level 0 is a compacted chunk (`rechunk.UNIT_ROWS` samples).
2. Levels are stored in blocks of BLOCK_BUCKETS. A level that needs more than one block has a next
   level, so the coarsest has one block, and n samples have about n / UNIT_ROWS / BLOCK_BUCKETS * 2
   blocks in all.
3. New buckets are appended to level 0. Of each level above, only the end is rebuilt from the level
   below. A level's last bucket may stand for fewer samples than the others.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any, NamedTuple

from sqlalchemy import bindparam, select
from sqlalchemy.orm import Session

from memagent_server.store.buckets import EMPTY, Buckets, chain, halve, pack_buckets, unpack_buckets
from memagent_server.store.models import RollupRow
from memagent_server.store.statements import CompiledSelect, upsert

BLOCK_BUCKETS = 512


class BlockHeader(NamedTuple):
    """A block without its buckets."""

    level: int
    block: int
    first_step: int
    last_step: int
    buckets: int


_OF_STREAM = (
    RollupRow.stream_id == bindparam("stream_id"),
    RollupRow.run_id == bindparam("run_id"),
)
_SELECT_HEADERS = CompiledSelect(
    select(*(getattr(RollupRow, name) for name in BlockHeader._fields))
    .where(*_OF_STREAM)
    .order_by(RollupRow.level, RollupRow.block)
)
_BLOCK_COLUMNS: tuple[Any, ...] = (RollupRow.block, RollupRow.packed)
_SELECT_BLOCKS = CompiledSelect(
    select(*_BLOCK_COLUMNS)
    .where(*_OF_STREAM, RollupRow.level == bindparam("level"))
    .where(RollupRow.block >= bindparam("first"), RollupRow.block <= bindparam("last"))
    .order_by(RollupRow.block)
)


class RollupLevels:
    """The rollups of one stream, read on demand. `extend` changes them in memory, `save` writes
    changes.

    Its compiled queries bypass the session's project filter: use it only for a stream that the
    session has found.
    """

    def __init__(
        self, session: Session, run_id: str, stream_id: int, only: Collection[str] | None = None
    ) -> None:
        self._session = session
        self._run_id = run_id
        self._stream_id = stream_id
        self._only = only
        self._headers: list[list[BlockHeader]] = []
        self._blocks: dict[tuple[int, int], Buckets] = {}
        self._changed: set[tuple[int, int]] = set()
        key = {"run_id": run_id, "stream_id": stream_id}
        for row in _SELECT_HEADERS.rows(session.connection(), key):
            header = BlockHeader(*row)
            if header.level == len(self._headers):
                self._headers.append([])
            self._headers[header.level].append(header)

    @property
    def coarsest(self) -> int:
        """The highest level; -1 without rollups."""
        return len(self._headers) - 1

    def count(self, level: int) -> int:
        """Return the number of buckets of a level."""
        if level > self.coarsest:
            return 0
        last = self._headers[level][-1]
        return last.block * BLOCK_BUCKETS + last.buckets

    def read(self, level: int, first: int = 0, end: int | None = None) -> Buckets:
        """Return buckets `first` to before `end` of a level."""
        end = self.count(level) if end is None else min(end, self.count(level))
        if first >= end:
            return EMPTY
        blocks = range(first // BLOCK_BUCKETS, (end - 1) // BLOCK_BUCKETS + 1)
        self._load(level, blocks)
        buckets = chain([self._blocks[level, block] for block in blocks])
        begin = blocks[0] * BLOCK_BUCKETS
        # the usual case, without a copy
        if (first, end) == (begin, begin + len(buckets)):
            return buckets
        return buckets.pick(slice(first - begin, end - begin))

    def each_block(self, level: int) -> Iterator[Buckets]:
        """Yield the blocks of a level, with one in memory at a time."""
        for header in self._headers[level] if level <= self.coarsest else ():
            for _, packed in self._select(level, header.block, header.block):
                yield unpack_buckets(packed, self._only)

    def spans(
        self, level: int, first_step: int | None, last_step: int | None
    ) -> list[tuple[int, int]]:
        """Return (first, end) of the runs of blocks that may overlap a window of steps."""
        spans: list[tuple[int, int]] = []
        for header in self._headers[level]:
            if (last_step is not None and header.first_step > last_step) or (
                first_step is not None and header.last_step < first_step
            ):
                continue
            first = header.block * BLOCK_BUCKETS
            end = first + header.buckets
            if spans and spans[-1][1] == first:
                spans[-1] = (spans[-1][0], end)
            else:
                spans.append((first, end))
        return spans

    def extend(self, new: Buckets) -> None:
        """Append buckets to level 0, and rebuild the ends of the levels above."""
        first = self.count(0)
        self._replace(0, first, new)
        level = 0
        while self.count(level) > BLOCK_BUCKETS:
            # a level that doesn't exist yet is built from the whole one below
            first = first // 2 if level < self.coarsest else 0
            self._replace(level + 1, first, halve(self.read(level, 2 * first)))
            level += 1

    def save(self, session: Session) -> None:
        """Write the changed blocks."""
        for level, block in sorted(self._changed):
            header = self._headers[level][block]
            values = {"run_id": self._run_id, "stream_id": self._stream_id, **header._asdict()}
            values["packed"] = pack_buckets(self._blocks[level, block])
            upsert(
                session, RollupRow, values, update=("first_step", "last_step", "buckets", "packed")
            )
        self._changed.clear()

    def _replace(self, level: int, first: int, new: Buckets) -> None:
        """Replace the buckets of a level from `first` on."""
        block = first // BLOCK_BUCKETS
        before = EMPTY
        if level <= self.coarsest:
            before = self.read(level, block * BLOCK_BUCKETS, first)
        else:
            self._headers.append([])
        buckets = chain([before, new])
        for index, begin in enumerate(range(0, len(buckets), BLOCK_BUCKETS), block):
            part = buckets.pick(slice(begin, begin + BLOCK_BUCKETS))
            low, high, _ = part.column("step")
            header = BlockHeader(level, index, int(low.min()), int(high.max()), len(part))
            self._blocks[level, index] = part
            # also drops the blocks after it, which are about to be replaced
            self._headers[level][index:] = [header]
            self._changed.add((level, index))

    def _load(self, level: int, blocks: Sequence[int]) -> None:
        missing = [block for block in blocks if (level, block) not in self._blocks]
        if not missing:
            return
        for block, packed in self._select(level, missing[0], missing[-1]):
            # a block that was changed in memory is newer than the stored one
            if (level, block) not in self._blocks:
                self._blocks[level, block] = unpack_buckets(packed, self._only)

    def _select(self, level: int, first: int, last: int) -> list[list[Any]]:
        parameters = {
            "level": level,
            "first": first,
            "last": last,
            "run_id": self._run_id,
            "stream_id": self._stream_id,
        }
        return _SELECT_BLOCKS.rows(self._session.connection(), parameters)
