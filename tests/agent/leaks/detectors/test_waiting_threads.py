"""Threads that pile up, and those of a pool."""

from __future__ import annotations

import queue
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

from memagent.leaks.detectors import waiting_threads
from memagent.leaks.detectors.waiting_threads import ThreadDetector, is_steady
from memagent.leaks.time_budgets import TimeBudget
from memagent.leaks.user_code import script_code


def produce(out: queue.Queue[int], full: threading.Event) -> None:
    for number in range(3):
        if out.full():
            full.set()
        out.put(number)


def wait_at(full: threading.Event, waits: threading.Event) -> None:
    full.set()
    waits.wait()


@pytest.fixture
def queues():
    """Queues whose threads end with the test."""
    made: list[queue.Queue[int]] = []
    yield made
    for item in made:
        item.get()


def start(made: list[queue.Queue[int]]) -> None:
    out: queue.Queue[int] = queue.Queue(2)
    full = threading.Event()
    made.append(out)
    threading.Thread(target=produce, args=(out, full)).start()
    full.wait()


def suspects_of(step_once):
    detector = ThreadDetector(lambda step: 40_000 // step)
    detector.begin(0)
    for step in range(1, 5):
        step_once()
        if step == 2:
            detector.middle(step)
    return detector.end(4, TimeBudget())


def test_it_names_the_line_at_which_more_and_more_threads_wait(queues):
    [suspect] = suspects_of(lambda: start(queues))
    assert (suspect.file, suspect.line) == (__file__, produce.__code__.co_firstlineno + 4)
    assert suspect.holder == "4 threads that run produce"
    assert (suspect.kind, suspect.bytes_per_step) == ("thread", 10_000)


def test_a_pool_whose_threads_are_there_already_has_no_suspect():
    waits, first = threading.Event(), threading.Barrier(5)
    with ThreadPoolExecutor(4) as pool:
        for _ in range(4):
            pool.submit(first.wait)
        first.wait()

        def submit() -> None:
            full = threading.Event()
            pool.submit(wait_at, full, waits)
            full.wait()

        try:
            assert suspects_of(submit) == []
            running = Counter(item.code for item in script_code())
            assert running[wait_at.__code__] == 4
        finally:
            waits.set()


@pytest.mark.parametrize(
    ("counts", "rises"),
    [((1, 3, 5), True), ((1, 5, 5), False), ((1, 1, 5), False), ((1, 2, 2), False)],
)
def test_a_count_rises_in_both_parts_of_a_window(counts, rises):
    assert is_steady(*counts, late_share=0.5) == rises


def test_more_threads_without_more_memory_are_no_suspects(queues, monkeypatch):
    monkeypatch.setattr(waiting_threads, "MIN_BYTES_PER_STEP", 10_001)
    assert suspects_of(lambda: start(queues)) == []
