"""Arrays that the script resizes beside a diagnosis: numpy refuses if anything else refers to one.

The interpreter switches threads as often as it can, so that the script's thread meets the diagnosis
in as many places as possible.
"""

from __future__ import annotations

import gc
import queue
import sys
import threading

import numpy
import pytest
import torch

from memagent.components import safe_reads
from memagent.leaks import find
from memagent.leaks.suspension import Survey


class Recorder:
    """A thread of the script that resizes what its attributes, lists and variables hold."""

    __slots__ = ("__dict__", "column")

    def __init__(self):
        self.rows = numpy.zeros(4)
        self.column = numpy.zeros(4)
        self.parts = [numpy.zeros(4)]
        self.by_name = {"loss": numpy.zeros(4)}
        self.rounds = 0
        self.error = None
        self.must_end = threading.Event()

    def run(self):
        local = numpy.zeros(4)
        try:
            while not self.must_end.is_set():
                self.rounds += 1
                size = 4 + self.rounds % 5
                local.resize(size)
                self.rows.resize(size)
                self.column.resize(size)
                self.parts[0].resize(size)
                self.by_name["loss"].resize(size)
                made = self.make(size)
                made.resize(2 * size)
        except ValueError as error:
            self.error = error

    def make(self, size):
        made = numpy.zeros(size + 1)
        made.resize(size)
        return made


@pytest.fixture
def recorder():
    recorder, interval = Recorder(), sys.getswitchinterval()
    thread = threading.Thread(target=recorder.run)
    sys.setswitchinterval(1e-6)
    thread.start()
    yield recorder
    recorder.must_end.set()
    thread.join()
    sys.setswitchinterval(interval)


kept = []
arrays = []


@pytest.mark.long  # in a worker with 800,000 objects the search may end before it has found anybody
@pytest.mark.parametrize("host", [False, True])
def test_a_search_stops_no_thread_from_resizing(recorder, host):
    def train_step():
        kept.append(torch.ones(64))
        arrays.append(numpy.zeros(512))

    diagnosis = find(train_step, host=host)
    assert any("kept" in item.holder for item in diagnosis.suspects)
    assert recorder.rounds and recorder.error is None


def test_a_search_upwards_stops_no_thread_from_resizing(recorder):
    """What only a library's object holds is looked for among all objects."""
    hidden = queue.SimpleQueue()
    find(lambda: hidden.put([torch.ones(64)]))
    assert recorder.rounds and recorder.error is None


def test_the_pass_of_a_census_stops_no_thread_from_resizing(recorder):
    for _ in range(20):
        Survey().end()
    assert recorder.rounds and recorder.error is None


def test_no_garbage_is_collected_while_threads_are_listed():
    """Callbacks of a collection would let a listed thread return, and keep its variables."""
    lock = threading.Lock()
    lock.acquire()
    thread = threading.Thread(target=lock.acquire)
    thread.start()
    while (frame := sys._current_frames()[thread.ident]).f_code.co_name != "run":
        pass
    counts, thresholds = set(), gc.get_threshold()

    def note(*_):
        counts.add(sys.getrefcount(frame))

    gc.callbacks.append(note)
    gc.set_threshold(1, 10**6, 10**6)
    for _ in range(20):
        assert thread.ident in safe_reads.thread_ids()
    gc.set_threshold(*thresholds)
    gc.callbacks.remove(note)
    lock.release()
    thread.join()
    assert len(counts) == 1


def test_a_running_functions_array_can_be_resized_after_a_search():
    local = numpy.zeros(4)
    hidden = queue.SimpleQueue()
    find(lambda: hidden.put([torch.ones(64)]), host=True)
    local.resize(8)


def test_it_tells_arrays_that_own_their_memory_apart():
    array, objects = numpy.zeros(8), numpy.array([None])
    others, ids, sizes = safe_reads.items_of([array, array[:2], objects, "text"])
    assert [type(item) for item in others] == [numpy.ndarray, numpy.ndarray, str]
    assert others[1] is objects and ids == [id(array)] and sizes == [sys.getsizeof(array)]
    assert safe_reads.parts_of({"key": array, "other": "text"}).array_ids == [id(array)]


def test_it_finds_keys_without_the_values():
    array = numpy.zeros(8)
    space = {"first": array, "second": array, "third": None}
    assert safe_reads.key_of(space, array) == safe_reads.keys_by_id(space)[id(array)] == "first"
    assert safe_reads.key_of(space, "text") is None


def test_a_reading_keeps_no_variable_of_a_function_that_has_returned():
    def function():
        array, text = numpy.zeros(8), "text"
        readings = safe_reads.running_code("nowhere", None)
        return array, next(item for item in readings if item.code.co_name == "function"), text

    array, reading, text = function()
    assert reading.variables == {"text": text} and not reading.is_module
    array.resize(9)


def test_it_reads_a_suspended_generator_and_keeps_what_locals_returned():
    def generator(argument):
        yield locals()

    suspended = generator("text")
    variables = next(suspended)
    assert safe_reads.read_frame(suspended.gi_frame).variables["argument"] == "text"
    assert variables["argument"] == "text"
