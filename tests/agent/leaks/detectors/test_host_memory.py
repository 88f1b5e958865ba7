"""Growth of Python objects outside torch."""

from __future__ import annotations

from memagent.leaks.detectors.base import TimeBudget
from memagent.leaks.detectors.host_memory import HostMemoryDetector
from memagent.units import format_bytes

OBJECTS = 3000


def suspected(make):
    """The lines of this file that a window suspects of 10 steps in which `make` made OBJECTS objects that stay."""
    retained: list[object] = [None] * OBJECTS
    window = HostMemoryDetector()
    window.begin(0)
    try:
        window.middle(1)
        for number in range(OBJECTS):
            retained[number] = make(number)
        return [
            suspect.line for suspect in window.end(11, TimeBudget()) if suspect.file == __file__
        ]
    finally:
        window.close()


def keep_nine(number):
    return [number] * 9


def test_it_names_the_line_that_retains_more():
    assert suspected(keep_nine)[0] == keep_nine.__code__.co_firstlineno + 1


def test_objects_of_memagent_are_not_suspects():
    assert suspected(lambda number: format_bytes(number * 2.0**30)) == []
