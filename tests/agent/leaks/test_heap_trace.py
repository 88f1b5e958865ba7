"""The heap by line, each time in a process of its own: nobody else may trace there."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from memagent.probe.heap import native_reader

ROOT = Path(__file__).parents[3]
pytestmark = pytest.mark.skipif(native_reader() is None, reason="mallinfo2 is glibc's")
PREPARED = """
import ctypes, os, sys, tracemalloc
from memagent.leaks.heap_trace import HeapTrace
from memagent.probe.heap import native_reader

malloc = ctypes.CDLL(None).malloc
malloc.restype, malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
free = ctypes.CDLL(None).free
free.argtypes = [ctypes.c_void_p]
tracemalloc.start(1)
trace = HeapTrace(native_reader())
"""


def printed(script: str, tmp_path: Path) -> str:
    path = tmp_path / "script.py"
    path.write_text(PREPARED + textwrap.dedent(script))
    command = [sys.executable, str(path)]
    environ = {"PYTHONPATH": str(ROOT / "agent"), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environ)
    assert not done.stderr
    return done.stdout


def test_it_tells_what_each_line_allocates_and_frees(tmp_path):
    script = """
    def keep():
        kept.append(malloc(100_000))  # keeps
    def pass_on():
        return malloc(300_000)  # passes on
    def step():
        keep()
        buffer = pass_on()
        values = bytes(500_000)
        free(buffer)  # frees
    kept = []
    trace.start()
    for _ in range(3):
        step()
        trace.end_step()
    trace.stop()
    texts = open(__file__).read().splitlines()
    for stack, size in trace.steps[-1].items():
        if abs(size) > 10_000:
            print(texts[stack[-1][1] - 1].partition("# ")[2], round(size, -5), len(stack))
    """
    told = set(printed(script, tmp_path).splitlines())
    assert told == {"keeps 100000 3", "passes on 300000 3", "frees -300000 2"}


def test_it_leaves_no_tracer_and_no_trace_in_variables(tmp_path):
    script = """
    def step(value):
        seen = locals()
        seen["value"] = "of the dict"
        value = 1
        del seen
        inner = lambda: value
        yield inner()
        value = 2
        yield inner()
    trace.start()
    values = [list(step(0)) for _ in range(3)]
    hidden = sys.gettrace(), sys.getprofile()
    trace.stop()
    print(values, hidden, sys.gettrace(), HeapTrace.active)
    """
    assert printed(script, tmp_path) == "[[1, 2], [1, 2], [1, 2]] (None, None) None None\n"


def test_what_is_allocated_in_a_pause_is_nobodys(tmp_path):
    script = """
    kept = []
    def pause():
        with trace.paused():
            kept.append(malloc(700_000))
            print(trace.is_here and sys.gettrace())
    def step():
        kept.append(malloc(100_000))  # keeps
        pause()
        kept.append(malloc(300_000))  # and goes on
    trace.start()
    step()
    trace.end_step()
    trace.stop()
    texts = open(__file__).read().splitlines()
    for stack, size in trace.steps[-1].items():
        if abs(size) > 10_000:
            print(texts[stack[-1][1] - 1].partition("# ")[2], round(size, -5))
    """
    assert set(printed(script, tmp_path).splitlines()) == {
        "None",
        "keeps 100000",
        "and goes on 300000",
    }


@pytest.mark.parametrize("tracer", ["sys.settrace", "sys.setprofile"])
def test_it_does_nothing_where_somebody_else_traces(tracer, tmp_path):
    script = f"""
    {tracer}(lambda *_: None)
    print(trace.start())
    {tracer}(None)
    """
    assert printed(script, tmp_path) == "False\n"


def test_a_tracer_that_the_script_sets_meanwhile_stays(tmp_path):
    script = """
    trace.start()
    def tracer(*_): pass
    sys.settrace(tracer)
    trace.stop()
    print(sys.gettrace() is tracer)
    sys.settrace(None)
    """
    assert printed(script, tmp_path) == "True\n"


def test_it_stops_in_a_forked_process_and_goes_on_in_the_first(tmp_path):
    script = """
    trace.start()
    child = os.fork()
    if not child:
        first = trace.spent_s
        for number in range(10):
            number += 1
        os._exit(trace.spent_s != first)
    _, status = os.waitpid(child, 0)
    first = trace.spent_s
    for number in range(10):
        number += 1
    print(status, trace.spent_s > first)
    trace.stop()
    """
    assert printed(script, tmp_path) == "0 True\n"


def test_a_process_may_end_while_it_is_traced(tmp_path):
    script = """
    import atexit, threading
    class Late:
        def __del__(self):
            print("late")
    late = Late()
    atexit.register(print, "registered")
    trace.start()
    """
    assert printed(script, tmp_path) == "registered\nlate\n"


def test_what_a_signal_handler_raises_reaches_the_script(tmp_path):
    script = """
    import signal
    class Interruption(Exception): pass
    def interrupt(*_):
        raise Interruption("now", 1)
    signal.signal(signal.SIGUSR1, interrupt)
    for _ in range(20):
        trace = HeapTrace(native_reader())
        trace.start()
        try:
            signal.raise_signal(signal.SIGUSR1)
            while True:
                number = 1
        except Interruption as error:
            caught = error.args
        trace.stop()
    print(caught, sys.gettrace())
    """
    assert printed(script, tmp_path) == "('now', 1) None\n"


def test_what_a_signal_handler_raises_is_never_lost(tmp_path):
    """Wherever it comes: also where the trace function itself begins."""
    script = """
    import signal
    class Interruption(Exception): pass
    caught = 0
    def interrupt(*_):
        raise Interruption
    signal.signal(signal.SIGALRM, interrupt)
    for number in range(100):
        trace = HeapTrace(native_reader())
        trace.start()
        try:
            signal.setitimer(signal.ITIMER_REAL, 1e-4 + 1e-6 * number)
            while True:
                left = 1
        except Interruption:
            caught += 1
        trace.stop()
    print(caught, sys.gettrace())
    """
    assert printed(script, tmp_path) == "100 None\n"


def test_a_function_with_too_many_readings_counts_as_its_caller(tmp_path):
    script = """
    def often():
        total = 0
        for number in range(2000):
            total += number
        blocks.append(malloc(100_000))
    def step():
        often()  # calls
    blocks = []
    ticks = iter(range(10**9))
    trace = HeapTrace(native_reader(), clock=lambda: next(ticks) * 1e-4)
    trace.start()
    for _ in range(3):
        step()
        trace.end_step()
    trace.stop()
    texts = open(__file__).read().splitlines()
    stack = max(trace.steps[-1], key=lambda stack: trace.steps[-1][stack])
    print(len(trace.steps), texts[stack[-1][1] - 1].strip())
    """
    assert printed(script, tmp_path) == "2 often()  # calls\n"


def test_the_rest_of_a_step_with_too_many_readings_costs_nothing(tmp_path):
    script = """
    import json
    def often():
        for number in range(2000):
            pass
    ticks = iter(range(10**9))
    trace = HeapTrace(native_reader(), clock=lambda: next(ticks) * 1e-4)
    trace.start()
    often()
    at_the_limit_s = trace.spent_s
    json.dumps([1])
    print(trace.spent_s == at_the_limit_s)
    trace.end_step()
    json.dumps([1])
    print(trace.spent_s > at_the_limit_s)
    trace.stop()
    """
    assert printed(script, tmp_path) == "True\nTrue\n"


def test_compiled_code_stays_as_it_is_and_the_trace_is_not_compiled(tmp_path):
    script = """
    import torch
    from torch._dynamo.utils import counters

    layer = torch.nn.Linear(8, 8)
    compiled = torch.compile(lambda rows: layer(rows).relu().sum(), backend="eager")
    def step():
        compiled(torch.ones(4, 8)).backward()
    step()
    before = dict(counters["frames"])
    trace = HeapTrace(native_reader(), clock=lambda: 0.0)  # no step has too many readings
    trace.start()
    for _ in range(3):
        step()
        trace.end_step()
    trace.stop()
    print(dict(counters["frames"]) == before, len(trace.steps))
    """
    assert printed(script, tmp_path) == "True 3\n"


def test_lines_of_libraries_are_left_out_until_it_stops(tmp_path):
    """Their calls count as time, and a debugger finds frames as they were."""
    script = """
    import sys, textwrap
    frames = []
    lines = {"library": 0}
    original = HeapTrace.handle
    def handle(self, frame, event):
        lines["library"] += frame.f_code.co_filename == textwrap.__file__
        original(self, frame, event)
    HeapTrace.handle = handle
    class Text(str):
        def expandtabs(self, *_):  # called by textwrap
            frames.append(sys._getframe(1))
            shown.append(frames[-1].f_trace_lines)
            trace.stop()
            shown.append(frames[-1].f_trace_lines)
            return "a b"
    shown = []
    trace.start()
    before = trace.spent_s
    textwrap.wrap(Text("a b"))
    print(shown, lines["library"] <= 2, trace.spent_s > before)
    """
    assert printed(script, tmp_path) == "[False, True] True True\n"
