"""Pauses of tracemalloc: what is allocated in one isn't traced, and all else is."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from memagent.leaks import trace_pause
from memagent.leaks.trace_pause import TracePause, clear_free_lists, untraced

ROOT = Path(__file__).parents[3]


@pytest.fixture
def _tracing():
    TracePause.start_tracing(2)
    yield
    tracemalloc.stop()


def are_traced(items):
    return [tracemalloc.get_object_traceback(item) is not None for item in items]


@pytest.mark.usefixtures("_tracing")
def test_what_is_allocated_in_a_pause_is_not_traced():
    before = [bytes(400)]
    with untraced():
        meanwhile = [bytes(400), bytearray(400)]
    after = [bytes(400)]
    assert are_traced([*before, *after]) == [True, True]
    assert are_traced(meanwhile) == [False, False]


@pytest.mark.usefixtures("_tracing")
def test_what_is_freed_or_resized_in_a_pause_is_known():
    items = [bytes(5_000 + number) for number in range(100)]
    rows = [0]
    before = tracemalloc.get_traced_memory()[0]
    with untraced():
        items.clear()
        rows.extend([1] * 30_000)  # resized: it's traced, with its new size
    freed = before - tracemalloc.get_traced_memory()[0]
    assert 500_000 - 240_000 - 20_000 < freed < 500_000 - 240_000 + 20_000


@pytest.mark.usefixtures("_tracing")
def test_the_hooks_are_back_after_an_error_and_after_a_pause_in_a_pause():
    with pytest.raises(ValueError, match="within"), untraced():
        with untraced():
            pass
        inner = bytes(400)
        raise ValueError("within")
    assert are_traced([inner, bytes(400)]) == [False, True]


@pytest.mark.usefixtures("_tracing")
def test_of_two_threads_the_last_one_ends_a_pause():
    first, second = untraced(), untraced()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    meanwhile = bytes(400)
    second.__exit__(None, None, None)
    assert are_traced([meanwhile, bytes(400)]) == [False, True]


@pytest.mark.usefixtures("_tracing")
def test_threads_begin_and_end_pauses_at_the_same_moment():
    """Switched between any two instructions, none reads the allocators of half an exchange."""

    def pause_often():
        for _ in range(1_000):
            with untraced():
                pass

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as pool:
            for done in [pool.submit(pause_often) for _ in range(4)]:
                done.result()
    finally:
        sys.setswitchinterval(interval)
    assert TracePause.is_alone() and are_traced([bytes(400)]) == [True]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.usefixtures("_tracing")
def test_a_forked_process_traces_though_another_thread_was_in_a_pause():
    began, ends = threading.Event(), threading.Event()

    def pause():
        with untraced():
            began.set()
            ends.wait()

    thread = threading.Thread(target=pause)
    thread.start()
    began.wait()
    child = os.fork()
    if not child:
        os._exit(0 if are_traced([bytes(400)]) == [True] else 1)
    ends.set()
    thread.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.usefixtures("_tracing")
def test_tracing_may_stop_and_start_within_a_pause():
    with untraced():
        tracemalloc.stop()
        TracePause.start_tracing(2)
        meanwhile = bytes(400)
    assert are_traced([meanwhile, bytes(400)]) == [True, True]
    with untraced():
        tracemalloc.stop()
    assert not tracemalloc.is_tracing() and are_traced([bytes(400)]) == [False]
    TracePause.start_tracing(2)  # for the fixture


@pytest.mark.usefixtures("_tracing")
def test_nothing_pauses_beside_another_tool_that_hooks_the_allocators():
    """It would be told of blocks freed that it hasn't seen."""
    domain = 2
    hooked, plain = trace_pause._allocator_of(domain), TracePause.plain[domain]
    other = trace_pause._Allocator(
        hooked.context, plain.malloc, hooked.calloc, hooked.realloc, hooked.free
    )
    trace_pause._set_allocator(domain, other)
    try:
        with untraced():
            meanwhile = [bytes(400)]
    finally:
        trace_pause._set_allocator(domain, hooked)
    assert are_traced(meanwhile) == [True]


@pytest.mark.parametrize("are_frozen", [False, True])
@pytest.mark.usefixtures("_tracing")
def test_free_lists_leave_nothing_untraced(are_frozen):
    """A tuple that a pause has freed is used again: without a trace."""
    gc.unfreeze()
    gc.collect()
    if are_frozen:
        gc.freeze()
    try:
        count = gc.get_freeze_count()
        with untraced():
            del [*zip(range(5_000), range(5_000), strict=True)][:]
        clear_free_lists()
        # other threads of the tests' process may free a few
        assert count - 100 < gc.get_freeze_count() <= count
        assert all(are_traced([(number, number) for number in range(3_000)]))
    finally:
        gc.unfreeze()


def test_nothing_pauses_where_allocators_need_their_context():
    """Those of a debugging interpreter: the trace goes on."""
    script = """if True:
    import tracemalloc
    from memagent.leaks.trace_pause import TracePause, untraced
    TracePause.start_tracing(2)
    with untraced():
        item = bytes(400)
    print(TracePause.plain, tracemalloc.get_object_traceback(item) is not None)
    """
    environ = {**os.environ, "PYTHONMALLOC": "debug", "PYTHONPATH": str(ROOT / "agent")}
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, env=environ
    )
    assert done.stdout == "{} True\n"
