"""Growth of Python objects outside torch."""

from __future__ import annotations

import ast
import ctypes
import gc
import inspect
import re
import subprocess
import sys
import textwrap
import tracemalloc
import weakref
from collections import deque
from pathlib import Path

import numpy
import pytest

from memagent.leaks.detectors.base import finish
from memagent.leaks.detectors.host_memory import HostMemoryDetector
from memagent.leaks.host_suspects import most_specific
from memagent.leaks.suspect import build_suspect
from memagent.leaks.time_budgets import TimeBudget
from memagent.leaks.trace_schedule import TraceSchedule
from memagent.leaks.traced_blocks import traced_blocks
from memagent.probe.heap import heap_reader
from memagent.units import format_bytes

OBJECTS = 3000
ROOT = Path(__file__).parents[4]


def suspected(make):
    """The lines of this file that a window suspects of 20 steps in which `make` made OBJECTS objects that stay."""
    return [item.line for item in suspects_of(make) if item.file == __file__]


def suspects_of(make):
    retained: list[object] = [None] * OBJECTS
    window = HostMemoryDetector()
    window.begin(0)
    try:
        for number in range(OBJECTS):
            if number == OBJECTS // 2:
                window.middle(10)
            if number == OBJECTS * 19 // 20:
                window.before_last(19)
            retained[number] = make(number)
        return finish(window.search(20, TimeBudget()))
    finally:
        window.close()


def keep_nine(number):
    return [number] * 9


def suspects_of_steps(took_s):
    """Lines and rates of 40 steps that keep 500 objects each, and take `took_s` instead of 10 ms."""
    retained: list[object] = []
    window = HostMemoryDetector(schedule=TraceSchedule(0.01, steps=40))
    window.begin(0)
    try:
        for step in range(1, 41):
            retained += map(keep_nine, range(500))
            window.after_step(took_s)
            if step == 20:
                window.middle(step)
            if step == 39:
                window.before_last(step)
        found = finish(window.search(40, TimeBudget()))
    finally:
        window.close()
    return [(item.line, item.bytes_per_step) for item in found if item.file == __file__]


def names_near_the_end():
    """What keeps the rows of 40 steps, as known after each of the four steps before the last one."""
    rows: list[object] = []
    window = HostMemoryDetector()
    window.begin(0)
    known = []
    try:
        for step in range(1, 40):
            rows += map(keep_nine, range(500))
            window.after_step()
            if step == 20:
                window.middle(step)
            if step >= 35:
                (window.near_end if step < 39 else window.before_last)(step)
                known.append([item.holder for item in window._holders.values() if item])
        known.append([item.holder for item in finish(window.search(40, TimeBudget()))])
    finally:
        window.close()
    return known


def test_4_lines_are_chosen_near_the_end_and_then_looked_for_one_a_step():
    code = f"from {__name__} import names_near_the_end; print(names_near_the_end())"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=ROOT, text=True, capture_output=True, check=True)
    chosen, *others = ast.literal_eval(done.stdout)
    assert chosen == []
    assert all(holders[0].startswith("rows: list of") for holders in others), others


def old_cycles(number):
    """A cycle that only a collection of all objects finds."""
    if number % 30 == 0:
        RECENT.append(node := [bytes(60_000)])
        node.append(node)
        gc.set_threshold(10**9)  # else all are collected now and then, as few as there are
        gc.collect(1)
        RECENT.pop()


def test_what_an_old_cycle_keeps_is_no_suspect():
    # what other tests have left may be collected meanwhile
    code = f"from {__name__} import old_cycles, suspects_of; print(suspects_of(old_cycles))"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=ROOT, text=True, capture_output=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize("took_s", [0.01, 0.1, 2.0], ids=["all", "some", "none"])
def test_slow_steps_are_not_all_traced(took_s):
    """If none is, the census of containers finds the list and its line."""
    lines, first = inspect.getsourcelines(suspects_of_steps)
    adds = next(n for n, text in enumerate(lines, first) if "retained += " in text)
    code = f"from {__name__} import suspects_of_steps; print(*suspects_of_steps({took_s})[0])"
    process = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert process.stderr == ""
    line, rate = map(int, process.stdout.split())
    assert line == adds
    assert rate == pytest.approx(500 * (9 * 8 + 56 + 32), rel=0.5)


def test_it_names_the_line_that_retains_more():
    lines, first = inspect.getsourcelines(suspects_of)
    stores = next(n for n, text in enumerate(lines, first) if "retained[number] =" in text)
    # in a process of its own: among a worker's 800,000 objects the search for holders gives up
    code = f"from {__name__} import keep_nine, suspected; print(suspected(keep_nine)[0])"
    process = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert process.stdout == f"{stores}\n", process.stderr


@pytest.mark.skipif(heap_reader() is None, reason="mallinfo2 is glibc's")
@pytest.mark.parametrize(("native", "traced"), [(200_000, 0), (0, 200_000), (90_000, 200_000)])
def test_it_tells_growth_that_is_not_of_python_objects(native, traced):
    # a new process: where many tests have run, a reading of the heap takes too long
    code = f"""
        import ctypes
        from memagent.leaks.detectors.host_memory import HostMemoryDetector
        malloc = ctypes.CDLL(None).malloc
        malloc.restype, malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
        blocks, objects = [], []
        window = HostMemoryDetector()
        window.begin(0)
        for step in range(1, 20):
            blocks.append(malloc({native}) if {native} else None)
            objects.append(bytes({traced}) if {traced} else None)
            if step == 10:
                window.middle(step)
        window.before_last(19)
        print(window.native_bytes_per_step)
    """
    command = [sys.executable, "-c", textwrap.dedent(code)]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    assert told == "None" if traced else int(told) == pytest.approx(native, rel=0.2)


def test_blocks_that_memagent_makes_at_a_line_are_no_tensors_of_it():
    tracemalloc.start(6)
    try:
        own, script = format_bytes(123_456_789), f"{OBJECTS} MiB of {OBJECTS}"
        _, tensors = traced_blocks(sys.getsizeof(own))
        _, others = traced_blocks(sys.getsizeof(script))
    finally:
        tracemalloc.stop()
    line = test_blocks_that_memagent_makes_at_a_line_are_no_tensors_of_it.__code__.co_firstlineno
    assert (tensors[__file__, line + 3], others[__file__, line + 3]) == (0, 1)


class Chain:
    newest: object = None


def link(number):
    made = [number] * 9
    Chain.newest = (made, Chain.newest)


def test_it_names_what_keeps_what_a_line_makes():
    """No container becomes longer: each tuple has the one before.

    In a process of its own: that of many tests has more objects than the search has time for.
    """
    code = f"""
from {__name__} import link, suspects_of
first = suspects_of(link)[0]
print(first.line, first.holder)
"""
    output = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, text=True, capture_output=True, check=True
    ).stdout
    line = link.__code__.co_firstlineno + 2
    assert output == f"{line} Chain.newest: tuple of 2\n"


class Infos:
    recent: object = None


def info(number):
    made = [number] * 9
    Infos.recent = {"made": made, "last": Infos.recent}


def test_it_names_a_chain_of_dicts_by_its_outermost_link():
    """Each has the one before by the same key, so none is a table of fixed size."""
    code = f"""
from {__name__} import info, suspects_of
first = suspects_of(info)[0]
print(first.line, first.holder)
"""
    output = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, text=True, capture_output=True, check=True
    ).stdout
    assert output == f"{info.__code__.co_firstlineno + 2} Infos.recent['last']: dict of 2\n"


class Tower:
    top: object = None


def tower(number):
    values = numpy.full(90, number)
    Tower.top = Link(values, Tower.top)


class Link:
    def __init__(self, values, below):
        self.values, self.below = values, below


def test_it_names_the_chain_of_objects_that_keep_the_arrays_of_a_line():
    """An array is tracked by nobody, and held by no search: its owner tells that it's there."""
    code = f"""
from {__name__} import suspects_of, tower
first = suspects_of(tower)[0]
print(first.line, first.holder)
"""
    output = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, text=True, capture_output=True, check=True
    ).stdout
    assert output == f"{tower.__code__.co_firstlineno + 2} Tower.top: chain of Link by below\n"


class Shard:
    def __init__(self, number):
        self.rows = numpy.full(90, number)
        weakref.finalize(self, self.close)

    def close(self):
        self.rows = None


def open_shard(number):
    Shard(number)


def test_it_names_the_finalizers_that_keep_the_arrays_of_a_line():
    """They refer to the object whose end they wait for, from a table of the library's."""
    code = f"""
from memagent.leaks import traced_holders
from {__name__} import open_shard, suspects_of
traced_holders._MAX_CPU_S = 600.0
first = suspects_of(open_shard)[0]
print(first.line, first.holder)
"""
    output = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, text=True, capture_output=True, check=True
    ).stdout
    line = Shard.__init__.__code__.co_firstlineno + 2
    assert re.fullmatch(rf"{line} weakref\.finalize\._registry: dict of \d+\n", output), output


class Report:
    newest: object = None
    latest: object = None

    def __init__(self, number):
        self.table = [[number, row] for row in range(60)]

    def end(self):
        return self.table[0]


LISTENERS: list[object] = []
RECENT: deque[object] = deque(maxlen=1000)


def report(number):
    if number % 30 == 0:
        Report.newest = Report(number)
        LISTENERS.append(Report.newest.end)


def keep_out_of_sight(number):
    if number % 30:
        return
    rows = [[number, row] for row in range(60)]
    for row in rows:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(row))
    RECENT.append(rows[0])
    Report.latest = rows


@pytest.mark.parametrize(
    ("make", "expected"),
    [(report, "LISTENERS: list of"), (keep_out_of_sight, "rows = [[number, row] for")],
    ids=["passed through", "left out"],
)
def test_a_container_of_fixed_size_keeps_nothing(make, expected):
    """It's the table of the newest report, or the newest rows, which the search finds first.

    Nor does a buffer that fills up excuse a line that makes 60 times as much.
    """
    code = f"""
from {__name__} import {make.__name__}, suspects_of
print([item.holder for item in suspects_of({make.__name__})])
"""
    output = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, text=True, capture_output=True, check=True
    ).stdout
    assert output.startswith(f"['{expected}"), output


RECORDS = [{"label": number} for number in range(OBJECTS)]
NEWEST = [{"label": number, "image": bytes(900)} for number in range(OBJECTS)]


def add_to_entry(number):
    record = RECORDS[number]
    record["image"] = bytes(900 + number % 2)


def replace_in_entry(number):
    record = NEWEST[number]
    record["image"] = bytes(900 + number % 2)


@pytest.mark.skipif(heap_reader() is None, reason="mallinfo2 is glibc's")
@pytest.mark.parametrize(
    ("make", "expected"), [(add_to_entry, [f"RECORDS: list of {OBJECTS}"]), (replace_in_entry, [])]
)
def test_what_is_added_to_entries_of_a_table_of_fixed_size_is_named(make, expected):
    """Unless it takes the place of what they had: then no more is allocated."""
    code = f"""
from {__name__} import {make.__name__}, suspects_of
print([item.holder for item in suspects_of({make.__name__})])
"""
    output = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, text=True, capture_output=True, check=True
    ).stdout
    assert output == f"{expected}\n"


def keep(number, rows, store):
    values = [number] * 9
    rows.append(values)
    other = [number] * 8
    store.register(print, other)


FIRST = keep.__code__.co_firstlineno


def line(number, rate=5_000.0):
    return build_suspect(__file__, FIRST + number, "keep", "values = make()", "host", rate, 0.6)


def test_a_later_line_of_the_function_keeps_what_a_line_makes():
    rows = build_suspect(__file__, FIRST + 2, "keep", "rows: list", "host", 100, 0.8)
    (suspect,) = most_specific([rows], [line(1)], {})
    assert (suspect.line, suspect.holder) == (FIRST + 2, "rows: list")
    (suspect,) = most_specific([], [line(1), line(2, 900.0)], {(__file__, FIRST + 2): rows})
    assert (suspect.line, suspect.bytes_per_step) == (FIRST + 2, 5_900)


def test_a_call_that_keeps_its_arguments_is_named_for_them():
    (suspect,) = most_specific([], [line(3)], {})
    assert (suspect.line, suspect.holder) == (FIRST + 4, "store.register(print, other)")


def test_what_is_kept_by_something_that_cannot_grow_is_no_suspect():
    assert most_specific([], [line(1)], {(__file__, FIRST + 1): None}) == []
    assert most_specific([], [line(1)], {(__file__, FIRST + 2): None}) == []


def test_what_is_made_in_one_half_of_the_window_only_is_no_suspect():
    """Such as the order of an epoch: a list of thousands of numbers."""
    orders = [(0, None), (OBJECTS // 2, "second half")]
    assert suspected(lambda number: [number] * 999 if number == OBJECTS - 1 else orders) == []


@pytest.mark.skipif(heap_reader() is None, reason="mallinfo2 is glibc's")
def test_what_entries_have_in_common_is_no_growth():
    shared = [[number] * 50 for number in range(1000)]
    rows = []

    def make(number):
        rows.append({"number": [number] * 9, "session": shared})

    [suspect] = [item for item in suspects_of(make) if item.holder.startswith("rows: list of")]
    assert suspect.bytes_per_step < 200 * OBJECTS / 20 * 9


@pytest.mark.parametrize("generation", [0, 2])
def test_what_each_step_makes_anew_is_no_suspect(generation):
    """Such as an input that is longer each time. A step with many objects ages them."""
    inputs: list[object] = []

    def load(number):
        if number % (OBJECTS // 20) == 0:
            inputs[:] = [[number] * 99 for _ in range(number)]
            gc.collect(generation)

    assert suspected(load) == []


def test_objects_of_memagent_are_not_suspects():
    assert suspected(lambda number: format_bytes(number * 2.0**30)) == []


def test_blocks_by_stack_are_those_of_a_snapshot():
    if tracemalloc.is_tracing():
        pytest.skip("another tool traces")
    tracemalloc.start(6)
    try:
        kept = [bytearray(100 + index % 7) for index in range(500)]
        kept += [str(index) * 40 for index in range(300)]
        blocks, _ = traced_blocks()
        snapshot = tracemalloc.take_snapshot()
    finally:
        tracemalloc.stop()
    ours = {stack: sizes for stack, sizes in blocks.items() if stack[-1][0] == __file__}
    theirs: dict[tuple, tuple[int, int]] = {}
    for trace in snapshot.traces:
        stack = tuple((frame.filename, frame.lineno) for frame in trace.traceback)
        size, count = theirs.get(stack, (0, 0))
        theirs[stack] = size + trace.size, count + 1
    assert len(ours) >= 2 and sum(count for _, count in ours.values()) >= len(kept)
    # the readings themselves make a few blocks in between, in other lines
    assert {stack: theirs.get(stack) for stack in ours} == ours
