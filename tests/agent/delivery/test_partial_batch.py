"""Batches merged from the drafts of a killed process."""

from __future__ import annotations

from memagent.delivery.partial_batch import merge_drafts
from memagent.wire.codec import decode, encode
from memagent.wire.columns import unpack
from memagent.wire.messages import Batch, Chunk, Event


def draft(seq=0, *, stream="host", events=(), dropped=None, **columns):
    chunks = [Chunk(stream=stream, columns=columns)] if columns else []
    return encode(
        Batch(
            rank=3,
            attempt=7,
            seq=seq,
            chunks=chunks,
            events=list(events),
            dropped_samples=dropped or {},
        )
    )


def merged(bodies, after=None):
    body = merge_drafts(bodies, after=after)
    return None if body is None else decode(body, Batch)


def columns(batch):
    return {chunk.stream: unpack(chunk.packed) for chunk in batch.chunks}


def test_rows_of_a_stream_are_joined_in_order():
    batch = merged(
        [draft(step=[1, 2]), draft(stream="scalars", step=[2], loss=[0.5]), draft(step=[3])]
    )
    assert (batch.rank, batch.attempt, batch.seq) == (3, 7, 0)
    assert columns(batch) == {"host": {"step": [1, 2, 3]}, "scalars": {"step": [2], "loss": [0.5]}}


def test_a_column_missing_in_a_draft_is_null_there():
    batch = merged([draft(step=[1], a_bytes=[5]), draft(step=[2], b_bytes=[6])])
    assert columns(batch)["host"] == {"step": [1, 2], "a_bytes": [5, None], "b_bytes": [None, 6]}


def test_a_logged_scalar_is_a_float_under_any_name():
    batch = merged([draft(stream="scalars", step=[1], cache_bytes=[0.5])])
    assert columns(batch)["scalars"]["cache_bytes"] == [0.5]


def test_events_and_the_newest_counts_are_preserved():
    batch = merged(
        [
            draft(events=[Event(kind="oom", step=4)], dropped={"queue_full": 1}),
            draft(dropped={"queue_full": 9}),
        ]
    )
    assert [event.step for event in batch.events] == [4] and batch.dropped_samples == {
        "queue_full": 9
    }


def test_the_same_drafts_give_the_same_bytes():
    bodies = [draft(step=[1], a_bytes=[5]), draft(step=[2])]
    assert merge_drafts(bodies, after=None) == merge_drafts(list(bodies), after=None)


def test_drafts_of_a_written_batch_are_ignored():
    assert merged([draft(2, step=[1])], after=encode(Batch(seq=2))) is None
    assert merged([draft(3, step=[1]), draft(2, step=[0])], after=encode(Batch(seq=2))).seq == 3


def test_no_drafts_make_no_batch():
    assert merge_drafts([], after=None) is None


def test_an_unpackable_stream_is_omitted_alone():
    batch = merged([draft(step=[1]), draft(stream="other", step=[1], a_bytes=[2**63])])
    assert set(columns(batch)) == {"host"}
