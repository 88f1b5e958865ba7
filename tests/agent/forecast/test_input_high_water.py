"""A host's floor grows with the largest input. That isn't a leak; growth next to it is one.

Numbers as in `memagent.forecast.input_high_water`.
"""

from __future__ import annotations

import random

import pytest

from memagent.forecast import Forecaster
from memagent.forecast.bucketed_series import BucketedSeries
from memagent.forecast.input_high_water import InputHighWaterModel

MIB = 2**20
LIMIT = 400 * MIB
PAGES = ("warning", "critical")


def first_page(
    length_of, leak=lambda step: 0.0, *, steps: int = 900, readings: dict | None = None, **options
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
            reserved_bytes=floor + MIB, **readings or {},
        )  # fmt: skip
        page = page or (forecast if forecast.level in PAGES else None)
    return page, None


def grows_and_stays(step: int) -> int:
    return min(32 + step // 2, 352)


def varies(step: int) -> int:
    return random.Random(step).randrange(20, 200)


def test_input_lengths_that_rise_to_a_plateau_are_not_a_leak():
    assert first_page(grows_and_stays) == (None, None)


def test_the_floor_of_a_caching_allocator_is_not_explained_by_inputs():
    page, _ = first_page(grows_and_stays, readings={"inactive_split_bytes": 0})
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


# The model without a forecaster


def model_of(
    sizes, floors, *, first: int = 0, late: int = 0
) -> tuple[InputHighWaterModel, BucketedSeries]:
    """Return the model and the floor's series after a step for each size; `late` steps come first."""
    model, series = InputHighWaterModel(), BucketedSeries(min)
    for step in range(late):
        series.add(first - late + step, 0.0, 1e9)
    for step, (size, floor) in enumerate(zip(sizes, floors, strict=True), first):
        model.observe(size)
        model.add(step)
        series.add(step, floor, 1e9)
    return model, series


STAIRS = [10, 10, 30, 30, 30, 31, 31, 60, 60, 60, 61, 62]


def test_rule_2_and_4_a_line_through_the_largest_input_explains_the_floor():
    model, floor = model_of(STAIRS, [5 + 3 * size for size in STAIRS])
    assert model.future_growth(100) is None  # not asked yet
    assert model.explains(floor, 0)
    assert model.future_growth(100) == pytest.approx(3 * (100 - 62))
    assert model.future_growth(62) == model.future_growth(20) == 0.0
    assert model.future_growth(None) is None


def test_rule_2_and_4_so_does_its_square():
    model, floor = model_of(STAIRS, [5 + 0.5 * size**2 for size in STAIRS])
    assert model.explains(floor, 0)
    assert model.future_growth(100) == pytest.approx(0.5 * (100**2 - 62**2))


def test_rule_2_growth_with_the_steps_is_not_explained():
    model, floor = model_of(STAIRS, [100.0 * step for step in range(12)])
    assert not model.explains(floor, 0)
    assert model.future_growth(100) is None


def test_rule_2_a_floor_that_falls_is_not_explained():
    model, floor = model_of(STAIRS, [1000 - 3 * size for size in STAIRS])
    assert not model.explains(floor, 0)


@pytest.mark.parametrize(("share", "is_explained"), [(0.15, True), (0.25, False)])
def test_rule_2_inputs_fit_a_fifth_worse_than_steps_at_most(share, is_explained):
    # the floor lies 0.2 beside the steps' line, the inputs `share` of that on its other side
    sides = [0.2 * (-1) ** step for step in range(40)]
    sizes = [100 + step - share * side for step, side in enumerate(sides)]
    model, floor = model_of(sizes, [step + side for step, side in enumerate(sides)])
    assert model.explains(floor, 0) == is_explained


def test_rule_2_eight_buckets_are_needed():
    def explains(count: int, since: int = 0) -> bool:
        sizes = [10 * step for step in range(1, count + 1)]
        model, floor = model_of(sizes, sizes)
        return model.explains(floor, since)

    assert [explains(count) for count in (7, 8)] == [False, True]
    assert [explains(12, since) for since in (4, 5)] == [True, False]


def test_rule_2_inputs_that_begin_later_or_do_not_grow_explain_nothing():
    sizes = [10 * step for step in range(1, 21)]
    model, floor = model_of(sizes, sizes, first=5, late=5)
    assert not model.explains(floor, 0)
    model, floor = model_of([10] * 20, sizes)
    assert not model.explains(floor, 0)


def test_rule_2_only_the_growth_since_a_step_counts():
    sizes = [10 * step for step in range(1, 21)]
    model, floor = model_of(sizes, [900.0] * 8 + [2.0 * size for size in sizes[8:]])
    assert not model.explains(floor, 0)
    assert model.explains(floor, 8)
    assert model.future_growth(300) == pytest.approx(2 * 100)


@pytest.mark.parametrize(
    ("sizes", "settled_since"),
    [
        ([], None),
        ([5] * 3, None),
        ([5] * 4, 1),
        ([4] + [5] * 3, None),
        ([4] + [5] * 4, 2),
        ([1, 2, 2, 3] + [3] * 4, None),  # two pauses of two steps, and one
        ([1, 2, 2, 3] + [3] * 5, 4),
        ([1, 2, 3, 3, 3, 4] + [4] * 6, None),
        ([1, 2, 3, 3, 3, 4] + [4] * 7, 6),
    ],
)
def test_rule_3_inputs_have_settled_after_twice_their_longest_pause(sizes, settled_since):
    assert model_of(sizes, sizes)[0].settled_since == settled_since


def test_rule_3_growth_after_the_last_rise_is_not_explained_by_it():
    sizes = [10 * step for step in range(1, 13)] + [120] * 20
    model, floor = model_of(sizes, [float(min(size, 120)) + max(0, step - 14) * 50 for step, size in enumerate(sizes)])  # fmt: skip
    assert model.settled_since == 12
    assert model.explains(floor, 0)
    assert model.future_growth(130) == pytest.approx(10)


def test_a_cleared_model_knows_the_largest_input_only():
    model, floor = model_of(STAIRS, STAIRS)
    assert model.explains(floor, 0)
    model.clear()
    assert (model.largest, model.future_growth(100), model.settled_since) == (62, None, None)
    assert not model.explains(floor, 0)
    model.observe(7)
    assert model.largest == 62
