"""A history as polars, pandas, arrow, numpy: the same values, and missing ones are missing."""

from __future__ import annotations

import math
import sys

import pytest

import memagent
from memagent.errors import MemagentError, WireError
from memagent.wire.sample_stream import END, SampleFrame, decode_frames, encode_frame


@pytest.fixture
def history(folder):
    return memagent.Api(folder).run("death").history()


def test_every_form_has_the_same_values(history):
    rows = history.to_dict()
    polars = history.to_polars()
    assert polars.to_dict(as_series=False) == rows
    arrow = history.to_arrow()
    assert arrow.to_pydict() == rows
    pandas = history.to_pandas()
    assert list(pandas.columns) == list(rows)
    assert pandas["segments"].isna().sum() == rows["segments"].count(None)
    assert str(pandas["segments"].dtype) == "Int64"
    assert pandas["device"].tolist() == rows["device"]
    numpy = history.to_numpy()
    assert numpy["step"].tolist() == rows["step"]
    assert [None if math.isnan(x) else x for x in numpy["power_w"].tolist()] == rows["power_w"]


@pytest.mark.parametrize("package", ["polars", "pandas", "pyarrow"])
def test_a_missing_package_is_one_sentence(history, package, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    form = {"pyarrow": "arrow"}.get(package, package)
    with pytest.raises(MemagentError, match=f"pip install {package}"):
        getattr(history, f"to_{form}")()


def test_a_stream_that_breaks_off_is_no_whole_one():
    frame = encode_frame(SampleFrame(0, 1, "host", 0, b"x" * 100))
    stream = frame + frame + END
    for size in (1, 7, 1000):
        pieces = [stream[i : i + size] for i in range(0, len(stream), size)]
        assert len(list(decode_frames(pieces))) == 2
    with pytest.raises(WireError, match="broke off"):
        list(decode_frames([frame, frame[:50]]))
    with pytest.raises(WireError, match="too large"):
        list(decode_frames([b"\xff\xff\xff\xff{}"]))
