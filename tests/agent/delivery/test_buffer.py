from __future__ import annotations

import pytest

from memagent.delivery.buffer import DroppedSamples, SampleBuffer, to_columns


def test_rows_are_returned_once_as_columns_in_order():
    buffer = SampleBuffer("host", ("step", "a_bytes", "never"), DroppedSamples())
    buffer.append(((1, 10, None), None))
    buffer.append(((2, 20, None), {"phase_eval_peak_bytes": 7}))
    assert to_columns(buffer.columns, buffer.drain()) == {
        "step": [1, 2],
        "a_bytes": [10, 20],
        "phase_eval_peak_bytes": [None, 7],
    }
    assert buffer.drain() == []


def test_a_full_buffer_drops_and_counts_instead_of_growing():
    drops = DroppedSamples()
    buffer = SampleBuffer("host", ("step",), drops, max_rows=3)
    for step in range(5):
        buffer.append(((step,), None))
    assert len(buffer) == 3 and drops == {"buffer_full": 2}
    assert [row for row, _ in buffer.drain()] == [(0,), (1,), (2,)]


def test_entries_stay_while_there_is_no_memory_for_their_rows():
    errors = [None, MemoryError(), None, None]

    def build(entry):
        if (error := errors.pop(0)) is not None:
            raise error
        return (entry,), None

    buffer = SampleBuffer("host", ("step",), DroppedSamples(), build)
    buffer.append(1)
    buffer.append(2)
    with pytest.raises(MemoryError):
        buffer.drain()
    assert buffer.drain() == [((1,), None), ((2,), None)]
