"""Trace of allocations in chosen steps."""

from __future__ import annotations

import tracemalloc

import pytest

from memagent.leaks.block_trace import BlockTrace
from memagent.leaks.trace_schedule import FEW_FRAMES, FRAMES, TraceSchedule


@pytest.fixture
def trace_of():
    traces = []

    def build(schedule=None):
        traces.append(BlockTrace(schedule))
        traces[-1].start()
        return traces[-1]

    yield build
    for trace in traces:
        trace.stop()
    assert not tracemalloc.is_tracing()


def is_traced(item):
    return tracemalloc.get_object_traceback(item) is not None


def keep(trace, took_s, kept):
    kept.append(bytes(100))
    trace.end_step(took_s)


def test_it_traces_only_the_chosen_steps(trace_of):
    trace = trace_of(TraceSchedule(0.01, steps=80))
    kept = []
    for _ in range(40):
        keep(trace, 0.08, kept)
    traced = sum(map(is_traced, kept))
    assert 3 <= traced < 25
    assert traced == trace.traced_steps(40)


def test_each_half_begins_with_a_traced_step(trace_of):
    trace = trace_of(TraceSchedule(0.01, steps=80))
    kept = []
    for _ in range(3):
        for _ in range(10):
            keep(trace, 0.1, kept)
        trace.begin_half()
        keep(trace, 0.1, kept)
        assert is_traced(kept[-1])


def test_what_is_freed_between_is_forgotten(trace_of):
    trace = trace_of(TraceSchedule(0.01, steps=80))
    kept = [bytes(5_000_000)]
    assert tracemalloc.get_traced_memory()[0] > 4_000_000
    for _ in range(20):
        keep(trace, 0.1, [])
    kept.clear()
    assert tracemalloc.get_traced_memory()[0] < 1_000_000


def test_it_begins_again_with_fewer_frames(trace_of):
    trace = trace_of(TraceSchedule(0.01, steps=80))
    assert tracemalloc.get_traceback_limit() == FRAMES
    kept = []
    keep(trace, 0.3, kept)
    assert tracemalloc.get_traceback_limit() == FEW_FRAMES
    keep(trace, 0.05, kept)
    assert [is_traced(item) for item in kept] == [False, True]
    assert trace.traced_steps(2) == 1


def test_it_ends_if_even_that_takes_too_long(trace_of):
    trace = trace_of(TraceSchedule(0.01, steps=80))
    keep(trace, 3.0, [])
    keep(trace, 1.0, [])
    assert not trace.is_active
    assert not tracemalloc.is_tracing()
    keep(trace, 0.01, [])
