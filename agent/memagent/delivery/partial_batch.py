"""Drafts: what a batch holds while it is still being gathered, on disk for the case that it never gets made.

Writing a draft must cost next to nothing, so its columns are not packed; that is done by whoever finds the drafts of a dead process.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from memagent.errors import WireError
from memagent.wire.codec import decode, encode
from memagent.wire.columns import Value, pack
from memagent.wire.fields import SCALARS_STREAM, kind_of, scalar_kind_of
from memagent.wire.messages import Batch, Chunk

Columns = dict[str, list[Value]]


def pack_chunk(stream: str, columns: Mapping[str, Sequence[Value]]) -> Chunk:
    """A packed chunk. Raises WireError for columns that cannot be packed."""
    kinds = scalar_kind_of if stream == SCALARS_STREAM else kind_of
    return Chunk(stream=stream, packed=pack(columns, kind_of=kinds))


def merge_drafts(bodies: Sequence[bytes], *, after: bytes | None) -> bytes | None:
    """The batch that `bodies` would have become; the same bytes for the same drafts, so it can be sent again.

    Drafts of the batch `after`, or of an older one, have been made into it: they don't count. None where nothing is left.
    """
    least = 0 if after is None else decode(after, Batch).seq + 1
    drafts = [draft for draft in (decode(body, Batch) for body in bodies) if draft.seq >= least]
    if not drafts:
        return None
    newest = max(draft.seq for draft in drafts)
    drafts = [draft for draft in drafts if draft.seq == newest]
    last = drafts[-1]
    columns: dict[str, Columns] = {}
    for piece in (chunk for draft in drafts for chunk in draft.chunks):
        _extend(columns.setdefault(piece.stream, {}), piece.columns or {})
    merged = Batch(
        rank=last.rank,
        attempt=last.attempt,
        seq=last.seq,
        chunks=[chunk for stream, found in columns.items() if (chunk := _packed(stream, found))],
        events=[event for draft in drafts for event in draft.events],
        dropped_samples=last.dropped_samples,
    )
    return encode(merged)


def _extend(columns: Columns, more: Mapping[str, Sequence[Value]]) -> None:
    """Add rows; a column that one side lacks is None there."""
    before, added = _rows(columns), _rows(more)
    for name in dict.fromkeys((*columns, *more)):
        columns.setdefault(name, [None] * before).extend(more.get(name, [None] * added))


def _rows(columns: Mapping[str, Sequence[Value]]) -> int:
    return len(next(iter(columns.values()), ()))


def _packed(stream: str, columns: Columns) -> Chunk | None:
    try:
        return pack_chunk(stream, columns)
    except WireError:
        return None  # the batch would have lacked it too
