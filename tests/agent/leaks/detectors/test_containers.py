"""Containers of the host that grow, without a trace of allocations."""

from __future__ import annotations

import pytest
import torch

from memagent.leaks import Finder
from memagent.leaks.detectors.base import finish
from memagent.leaks.detectors.containers import ContainerDetector
from memagent.leaks.free_memory import BoundCheck
from memagent.leaks.time_budgets import TimeBudget

ROW_BYTES = 80_000


@pytest.fixture(autouse=True)
def few_containers(monkeypatch):
    """Have short lists noted: the process of many tests may have more than are noted."""
    monkeypatch.setattr("memagent.leaks.growing_containers._MANY", 10**9)


class Episodes:
    def __init__(self):
        self.history = []
        self.used_bytes = 10**8

    def finish(self, number):
        self.history.append({"number": number, "rows": bytes(ROW_BYTES)})
        self.used_bytes += ROW_BYTES


def suspects(episodes, ends, steps=160):
    detector = ContainerDetector(lambda: episodes.used_bytes, BoundCheck())
    detector.begin(0)
    detector.read_used_bytes()
    for step in range(1, steps + 1):
        if step in ends:
            episodes.finish(step)
        if 2 * step == steps:
            detector.middle(step)
    found = finish(detector.search(steps, TimeBudget()))
    detector.close()
    return found


@pytest.mark.parametrize("ends", [(21, 37, 90, 140), (3, 66, 75, 81, 150)])
def test_it_names_what_grows_at_irregular_steps(ends):
    episodes = Episodes()
    (suspect,) = suspects(episodes, ends)
    assert suspect.holder.startswith("Episodes.history: list")
    assert suspect.file == __file__
    assert suspect.line == Episodes.finish.__code__.co_firstlineno + 1
    rate = ROW_BYTES * len(ends) / 160
    assert 0.5 * rate <= suspect.bytes_per_step <= rate


class Information(Episodes):
    """Keeps many short lists in one table, all of which grow."""

    def __init__(self):
        super().__init__()
        self.table = {}

    def finish(self, number):
        for key in range(40):
            self.table.setdefault(key, []).append(bytes(ROW_BYTES // 40))
        self.used_bytes += ROW_BYTES


def test_it_names_a_table_of_many_lists_by_one_with_the_growth_of_all():
    information = Information()
    (suspect,) = suspects(information, range(1, 160))
    assert suspect.holder.startswith("Information.table[")
    assert suspect.line == Information.finish.__code__.co_firstlineno + 2
    assert suspect.bytes_per_step == pytest.approx(ROW_BYTES, rel=0.1)


@pytest.mark.parametrize("ends", [(20, 40), (100, 140), (120,)])
def test_what_grows_in_one_half_only_is_no_suspect(ends):
    assert not suspects(Episodes(), ends)


def test_what_memory_does_not_show_is_no_suspect():
    episodes = Episodes()
    episodes.finish = lambda number: episodes.history.append({"rows": bytes(ROW_BYTES)})
    assert not suspects(episodes, (21, 37, 90, 140))


class Part:
    def __init__(self, value):
        self.a = self.b = self.c = self.d = self.e = self.f = value
        self.g = self.h = self.i = self.j = self.k = self.m = value


def test_it_names_what_grows_among_many_objects_that_it_looks_into_first():
    """Python makes their dicts only then: all of those would be new, and longer."""
    parts = {number: Part(torch.ones(1)) for number in range(600)}
    episodes = Episodes()
    finder = Finder(used_bytes=lambda: episodes.used_bytes)
    finder.request(containers=True, beyond_budget=True, window=20)
    diagnosis = None
    for step in range(1, 60):
        if step > 3:  # an empty list counts as new, too
            episodes.finish(step)
        diagnosis = diagnosis or finder.after_step(step)
    assert len(parts) == 600
    assert diagnosis.suspects[0].holder.startswith("Episodes.history: list")
