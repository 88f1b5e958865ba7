"""A host's floor grows with the largest input. That isn't a leak; growth next to it is one.

Numbers as in `memagent.forecast.input_high_water`.
"""

from __future__ import annotations

import random

import pytest

from memagent.forecast import Forecaster

MIB = 2**20
LIMIT = 400 * MIB
PAGES = ("warning", "critical")


def first_page(
    length_of, leak=lambda step: 0.0, *, steps: int = 900, reserved: bool = False, **options
):
    """Return the first page and the step of the OOM (or None) of a process that retains 0.5 MiB an
    element of its largest input, and the bytes that leak.
    """
    generator = random.Random(1)
    forecaster = Forecaster(LIMIT, **options)
    largest, page = 0, None
    for step in range(1, steps):
        length = length_of(step)
        largest = max(largest, length)
        floor = int((200 + 0.5 * largest + leak(step) + generator.uniform(0, 2)) * MIB)
        if floor >= LIMIT:
            return page, step
        forecast = forecaster.update(
            step, time_s=step, allocated_bytes=floor, peak_allocated_bytes=floor, input_size=length,
            reserved_bytes=floor + MIB if reserved else None,
        )  # fmt: skip
        page = page or (forecast if forecast.level in PAGES else None)
    return page, None


def grows_and_stays(step: int) -> int:
    return min(32 + step // 2, 352)


def varies(step: int) -> int:
    return random.Random(step).randrange(20, 200)


def test_input_lengths_that_rise_to_a_plateau_are_not_a_leak():
    assert first_page(grows_and_stays) == (None, None)


def test_the_reserved_floor_is_not_explained_by_inputs():
    page, _ = first_page(grows_and_stays, reserved=True)
    assert page is not None and page.cause == "leak"


def test_steadily_growing_input_lengths_have_the_cause_inputs():
    page, death = first_page(lambda step: 32 + step // 2)
    assert page is not None and page.cause == "input"
    assert death - page.step >= 10


@pytest.mark.parametrize("length_of", [varies, lambda step: min(32 + step // 2, 132)])
def test_a_leak_next_to_constant_lengths_is_a_leak(length_of):
    page, death = first_page(length_of, lambda step: 0.15 * step)
    assert page is not None and page.cause == "leak"
    assert death - page.step >= 0.1 * death


def test_growing_inputs_warn_only_if_the_largest_does_not_fit():
    growing = {"length_of": lambda step: 32 + step // 2, "steps": 640}
    assert first_page(**growing, max_input_size=360) == (None, None)
    page, _ = first_page(lambda step: 32 + step // 2, max_input_size=600)
    assert page is not None and page.cause == "input"
