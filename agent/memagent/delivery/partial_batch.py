"""Drafts: the rows of the batch in progress, on disk in case the process is killed.

Writing a draft must cost next to nothing, so its columns aren't packed. The reader of a killed
process's file does that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from memagent.errors import WireError
from memagent.wire.codec import decode, encode
from memagent.wire.columns import DEFAULT_CODEC, Codec, Value, pack
from memagent.wire.fields import SCALARS_STREAM, kind_of, scalar_kind_of
from memagent.wire.messages import Batch, Chunk

StreamColumns = dict[str, list[Value]]


def pack_chunk(
    stream: str, columns: Mapping[str, Sequence[Value]], codec: Codec = DEFAULT_CODEC
) -> Chunk:
    """Return a packed chunk. Raises WireError if the columns can't be packed."""
    kinds = scalar_kind_of if stream == SCALARS_STREAM else kind_of
    return Chunk(stream=stream, packed=pack(columns, codec=codec, kind_of=kinds))


def merge_drafts(bodies: Sequence[bytes], *, after: bytes | None) -> bytes | None:
    """Return the batch that drafts would have become, or None if there is none.

    The same drafts give the same bytes, so it can be sent again. Drafts of the batch `after`, and
    of older ones, are skipped: those batches were written.
    """
    first_seq = 0 if after is None else decode(after, Batch).seq + 1
    drafts = [draft for draft in (decode(body, Batch) for body in bodies) if draft.seq >= first_seq]
    if not drafts:
        return None
    # older drafts remain if the file could not be truncated after a batch
    newest = max(draft.seq for draft in drafts)
    drafts = [draft for draft in drafts if draft.seq == newest]
    from memagent.wire.console import newest_lines  # readers only

    last = drafts[-1]
    streams: dict[str, list[StreamColumns]] = {}
    for chunk in (chunk for draft in drafts for chunk in draft.chunks):
        streams.setdefault(chunk.stream, []).append(chunk.columns or {})
    chunks = (_pack_if_valid(stream, join_columns(blocks)) for stream, blocks in streams.items())
    batch = Batch(
        rank=last.rank,
        attempt=last.attempt,
        seq=last.seq,
        chunks=[chunk for chunk in chunks if chunk],
        events=[event for draft in drafts for event in draft.events],
        console=newest_lines(draft.console for draft in drafts),
        dropped_samples=last.dropped_samples,
    )
    return encode(batch)


def join_columns(blocks: Sequence[StreamColumns]) -> StreamColumns:
    """Return consecutive rows as one block. A column that some blocks lack is None there."""
    if len(blocks) == 1:
        return blocks[0]
    joined: StreamColumns = {name: [] for block in blocks for name in block}
    for block in blocks:
        missing: list[Value] = [None] * row_count(block)
        for name, values in joined.items():
            values.extend(block.get(name, missing))
    return joined


def row_count(columns: Mapping[str, Sequence[Value]]) -> int:
    return len(next(iter(columns.values()), ()))


def _pack_if_valid(stream: str, columns: StreamColumns) -> Chunk | None:
    try:
        return pack_chunk(stream, columns)
    except WireError:
        return None  # the batch would have lacked it, too
