"""Rollups of a stream: levels of buckets, each bucket twice as long as one of the level below, so that any chart reads about its points.

1. A bucket of level 0 is a compacted chunk (`compaction.UNIT_ROWS` samples).
2. Levels are stored in blocks of BLOCK buckets. There is a next level where a level needs more than one block, so the coarsest has
   one block, and of n samples there are about n / UNIT_ROWS / BLOCK * 2 blocks in all.
3. New buckets go behind those of level 0; of each level above only the end is made anew, from the level below. The last bucket of a
   level may stand for fewer than its like.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any, NamedTuple

from sqlalchemy import bindparam, select
from sqlalchemy.orm import Session

from memagent_server.store.buckets import (
    EMPTY,
    Buckets,
    chain,
    halved,
    pack_buckets,
    unpack_buckets,
)
from memagent_server.store.compiled_statements import CompiledSelect
from memagent_server.store.models import Rollup
from memagent_server.store.upsert import upsert

BLOCK = 512


class StreamHead(NamedTuple):
    """A block without its buckets."""

    level: int
    block: int
    first_step: int
    last_step: int
    buckets: int


_OF_STREAM = (Rollup.stream_id == bindparam("stream_id"), Rollup.run_id == bindparam("run_id"))
_BLOCK: tuple[Any, ...] = (Rollup.block, Rollup.packed)
_HEADS = CompiledSelect(
    select(*(getattr(Rollup, name) for name in StreamHead._fields))
    .where(*_OF_STREAM)
    .order_by(Rollup.level, Rollup.block)
)
_BLOCKS = CompiledSelect(
    select(*_BLOCK)
    .where(*_OF_STREAM, Rollup.level == bindparam("level"))
    .where(Rollup.block >= bindparam("first"), Rollup.block <= bindparam("last"))
    .order_by(Rollup.block)
)


class Levels:
    """The rollups of one stream, read as they are needed. `extend` changes them in memory, `save` writes what was changed.

    Its questions look at no limits of the session: ask only for a stream that was found by it.
    """

    def __init__(
        self, session: Session, run_id: str, stream_id: int, only: Collection[str] | None = None
    ) -> None:
        self._session, self._run_id, self._stream_id, self._only = session, run_id, stream_id, only
        rows = _HEADS.rows(session.connection(), {"run_id": run_id, "stream_id": stream_id})
        self._heads: list[list[StreamHead]] = []
        for row in rows:
            head = StreamHead(*row)
            if head.level == len(self._heads):
                self._heads.append([])
            self._heads[head.level].append(head)
        self._blocks: dict[tuple[int, int], Buckets] = {}
        self._changed: set[tuple[int, int]] = set()

    @property
    def coarsest(self) -> int:
        """The highest level; -1 where there are no rollups."""
        return len(self._heads) - 1

    def count(self, level: int) -> int:
        """How many buckets a level has."""
        if level > self.coarsest:
            return 0
        last = self._heads[level][-1]
        return last.block * BLOCK + last.buckets

    def read(self, level: int, first: int = 0, end: int | None = None) -> Buckets:
        """Buckets `first` to before `end` of a level."""
        end = self.count(level) if end is None else min(end, self.count(level))
        if first >= end:
            return EMPTY
        blocks = range(first // BLOCK, (end - 1) // BLOCK + 1)
        self._load(level, blocks)
        found = chain([self._blocks[level, block] for block in blocks])
        begin = blocks[0] * BLOCK
        return (
            found
            if (first, end) == (begin, begin + len(found))
            else found.pick(slice(first - begin, end - begin))
        )

    def each_block(self, level: int) -> Iterator[Buckets]:
        """The blocks of a level, one in memory at a time."""
        for head in self._heads[level] if level <= self.coarsest else ():
            yield from (
                unpack_buckets(packed, self._only)
                for _, packed in self._rows(level, head.block, head.block)
            )

    def spans(
        self, level: int, first_step: int | None, last_step: int | None
    ) -> list[tuple[int, int]]:
        """Where the buckets of a level are that may hold steps of a window: (first, end) of stretches of whole blocks."""
        found: list[tuple[int, int]] = []
        for head in self._heads[level]:
            if (last_step is not None and head.first_step > last_step) or (
                first_step is not None and head.last_step < first_step
            ):
                continue
            first, end = head.block * BLOCK, head.block * BLOCK + head.buckets
            if found and found[-1][1] == first:
                found[-1] = (found[-1][0], end)
            else:
                found.append((first, end))
        return found

    def extend(self, fresh: Buckets) -> None:
        """Put buckets behind those of level 0, and make the levels above anew where that changes them."""
        first = self.count(0)
        self._replace(0, first, fresh)
        level = 0
        while self.count(level) > BLOCK:
            first = first // 2 if level < self.coarsest else 0
            self._replace(level + 1, first, halved(self.read(level, 2 * first)))
            level += 1

    def save(self, session: Session) -> None:
        for level, block in sorted(self._changed):
            head = self._heads[level][block]
            values = {"run_id": self._run_id, "stream_id": self._stream_id, **head._asdict()}
            values["packed"] = pack_buckets(self._blocks[level, block])
            upsert(session, Rollup, values, update=("first_step", "last_step", "buckets", "packed"))
        self._changed.clear()

    def _replace(self, level: int, first: int, fresh: Buckets) -> None:
        """From bucket `first` on a level is `fresh`."""
        block = first // BLOCK
        kept = self.read(level, block * BLOCK, first) if level <= self.coarsest else EMPTY
        whole = chain([kept, fresh])
        if level > self.coarsest:
            self._heads.append([])
        for place, begin in enumerate(range(0, len(whole), BLOCK), block):
            part = whole.pick(slice(begin, begin + BLOCK))
            self._blocks[level, place] = part
            self._heads[level][place:] = [_head(level, place, part)]
            self._changed.add((level, place))

    def _load(self, level: int, blocks: Sequence[int]) -> None:
        missing = [block for block in blocks if (level, block) not in self._blocks]
        if not missing:
            return
        for block, packed in self._rows(level, missing[0], missing[-1]):
            if (level, block) not in self._blocks:
                self._blocks[level, block] = unpack_buckets(packed, self._only)

    def _rows(self, level: int, first: int, last: int) -> list[list[Any]]:
        asked = {
            "level": level,
            "first": first,
            "last": last,
            "run_id": self._run_id,
            "stream_id": self._stream_id,
        }
        return _BLOCKS.rows(self._session.connection(), asked)


def _head(level: int, block: int, part: Buckets) -> StreamHead:
    low, high, _ = part.of("step")
    return StreamHead(level, block, int(low.min()), int(high.max()), len(part))
