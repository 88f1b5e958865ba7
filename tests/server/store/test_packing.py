"""Sealed chunks are unsealed without a change."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memagent.arrays.stored_chunks import unseal_arrays
from memagent.errors import WireError
from memagent.wire.columns import unpack
from memagent_server.store.packing import SampleRange, seal, unseal

INTS = st.none() | st.integers(-(2**62) + 1, 2**62 - 1)
FLOATS = st.none() | st.floats(allow_nan=False)
TIMES = st.none() | st.floats(0, 1e12)


def column(values, kind):
    array = np.array([0 if value is None else value for value in values], kind)
    return array, None if None not in values else np.array([value is not None for value in values])


@settings(max_examples=150, deadline=None)
@given(st.data(), st.integers(1, 40))
def test_unsealed_columns_equal_the_sealed_ones(data, rows):
    def draw(values):
        return data.draw(st.lists(values, min_size=rows, max_size=rows))

    original = {
        "step": list(range(rows)),
        "time_s": draw(TIMES),
        "step_s": draw(FLOATS),
        "ints": draw(INTS),
    }
    kinds = {"step": np.int64, "time_s": np.float64, "step_s": np.float64, "ints": np.int64}
    packed = seal({name: column(values, kinds[name]) for name, values in original.items()})
    result = unseal(packed)
    assert list(result) == list(original)
    assert repr(result) == repr(
        {**original, **{name: as_floats(original[name]) for name in ("time_s", "step_s")}}
    )
    assert unseal(packed, only=["time_s"]) == {"time_s": result["time_s"]}


def as_floats(values):
    return [None if value is None else float(value) for value in values]


def test_a_clock_predictable_from_step_times_is_small():
    rng = np.random.default_rng(0)
    lengths = rng.uniform(0.1, 0.2, 512)
    times = 1.7e9 + np.cumsum(lengths) + rng.uniform(0, 2e-6, 512)
    steps = (np.arange(512), None)
    with_clock = len(seal({"step": steps, "step_s": (lengths, None), "time_s": (times, None)}))
    assert with_clock - len(seal({"step": steps, "step_s": (lengths, None)})) < 2 * 512
    assert len(seal({"step": steps, "time_s": (times, None)})) > 3 * 512


def test_a_column_missing_in_one_part_is_null_there():
    first = {"step": column([1, 2], np.int64), "a": column([5, None], np.int64)}
    second = {"step": column([3, 4, 5], np.int64), "b": column([None, 0.5, -0.0], np.float64)}
    piece = SampleRange([(first, 0, 2), (second, 1, 3)], 4, 4)
    assert repr(unseal(seal(piece.columns()))) == repr(
        {"step": [1, 2, 4, 5], "a": [5, None, None, None], "b": [None, None, 0.5, -0.0]}
    )


def test_damaged_chunks_are_refused():
    packed = seal({"step": column(list(range(100)), np.int64)})
    for broken in (
        packed[:-3],
        packed[:20],
        b"MAC1 and nothing else",
        packed[:30] + b"\0" + packed[31:],
    ):
        with pytest.raises(WireError):
            unseal(broken)
    with pytest.raises(WireError):
        unpack(packed)
    assert unseal_arrays(packed)["step"][1] is None
