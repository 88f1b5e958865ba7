"""Errors of the agent pass between processes: a pool that cannot read one is broken."""

from __future__ import annotations

import pickle
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import pytest

from memagent import errors
from memagent.errors import DeliveryError, MemagentError, OptionError, TraceError, WireError
from memagent.estimator.allocator.caching import SimulatedOutOfMemory
from memagent.estimator.formula.releases import release_of

PUBLIC = [
    value
    for value in vars(errors).values()
    if isinstance(value, type) and issubclass(value, MemagentError) and value is not OptionError
]


@pytest.mark.parametrize(
    "error",
    [
        *(kind("it failed: try again") for kind in PUBLIC),
        OptionError("transformers", "is '9': give a version"),
        WireError("no number", field="chunks[0]"),
        DeliveryError("busy", retry_after_s=2.0),
        TraceError("no such operator", op="aten.add"),
        SimulatedOutOfMemory(2**20, 2**21, 2**30, 2**31, None),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_pickled_error_has_the_same_words_and_attributes(error: MemagentError) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy), vars(copy)) == (type(error), str(error), vars(error))


def test_a_pool_survives_an_option_error() -> None:
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        with pytest.raises(OptionError, match=r"^transformers is '9': give a version"):
            pool.submit(release_of, "9").result()
        assert pool.submit(release_of, "5.0").result() == (5, 0)
