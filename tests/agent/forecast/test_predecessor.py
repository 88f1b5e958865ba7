"""The last run of the same program: growth that it survived is harmless, growth that killed it is
told early, and growth that it didn't have is judged as if it hadn't been.
"""

from __future__ import annotations

from itertools import pairwise

import pytest
from msgspec import ValidationError, convert, to_builtins
from msgspec.structs import replace

from memagent.forecast import Forecast, Forecaster, Hints
from memagent.forecast.predecessor import MAX_POINTS, Curve, Predecessor
from memagent.forecast.state import dump_state, load_state
from memagent.forecast.types import PAGING_LEVELS
from memagent.units import GIB, MIB

LIMIT = 40 * GIB
START = 10 * GIB
PACE = 64 * MIB
STEPS = 480
"""After so many steps at this pace, the limit is reached."""


def leak(step: int) -> int:
    return START + PACE * step


def buffer(step: int) -> int:
    return START + PACE * min(step, 400)


def flat(_step: int) -> int:
    return START


def before(sizes, last_step: int, status: str = "oom", limit: int = LIMIT) -> Predecessor:
    curve = Curve()
    for step in range(last_step + 1):
        curve.add(step, sizes(step), sizes(step) + GIB)
    steps, floors, peaks = zip(*curve.points(), strict=True)
    return Predecessor("before", status, last_step, limit, steps, floors, peaks)


def first_page(
    sizes, predecessor: Predecessor | None, steps: int = 600, limit: int = LIMIT, **options
) -> Forecast | None:
    """Return the first page of a run that uses these sizes, None without a page until its end."""
    forecaster = Forecaster(limit, **options)
    forecaster.learn(predecessor=predecessor)
    for step in range(steps):
        if sizes(step) + GIB >= limit:
            return None
        forecast = forecaster.update(
            step,
            time_s=10.0 * step,
            allocated_bytes=sizes(step),
            peak_allocated_bytes=sizes(step) + GIB,
        )
        if forecast.level in PAGING_LEVELS:
            return forecast
    return None


def test_2_the_death_of_the_last_run_is_told_as_soon_as_memory_grows_alike():
    alone, page = first_page(leak, None), first_page(leak, before(leak, 460))
    assert alone is not None and page is not None
    assert page.step < 60 < 200 < alone.step
    assert page.eta_step == pytest.approx(460, abs=1)
    assert page.eta_low < 420 and page.eta_high > 500
    assert page.predecessor == (
        "The last run of this script and configuration ran out of memory at step 460 on the same "
        "path."
    )


def test_2_a_larger_limit_moves_the_end_beyond_what_is_known():
    limit = 60 * GIB
    alone = first_page(leak, None, limit=limit)
    page = first_page(leak, before(leak, 460), limit=limit)
    assert alone is not None and page is not None and page.step == alone.step


def test_2_a_smaller_limit_ends_a_run_that_lived_before():
    limit = 30 * GIB
    page = first_page(buffer, before(buffer, 600, "completed"), limit=limit)
    assert page is not None and page.step < 60
    assert page.eta_step == pytest.approx((limit - START - GIB) / PACE, abs=12)


def test_3_growth_that_the_last_run_survived_pages_nobody():
    assert first_page(buffer, None) is not None
    assert first_page(buffer, before(buffer, 600, "completed")) is None


def test_3_a_team_may_want_even_that_page():
    page = first_page(buffer, before(buffer, 600, "completed"), page_cost=0.001)
    assert page is not None
    assert page.predecessor == (
        "The last run of this script and configuration ended well at 36.00 GiB."
    )


def test_3_a_run_that_people_stopped_says_nothing_of_later_steps():
    alone = first_page(leak, None)
    page = first_page(leak, before(leak, 350, "stopped"))
    assert alone is not None and page is not None and page.step == alone.step


def test_3_a_longer_plan_counts_from_the_end_of_the_shorter_run():
    page = first_page(leak, before(leak, 200, "completed"), total_steps=600)
    alone = first_page(leak, None, total_steps=600)
    assert alone is not None and page is not None and page.step == alone.step


def test_1_a_mended_leak_pages_nobody():
    assert first_page(flat, before(leak, 460)) is None


def test_1_a_new_leak_pages_as_it_would_without_a_last_run():
    alone, page = first_page(leak, None), first_page(leak, before(flat, 600, "completed"))
    assert alone is not None and page is not None
    assert (page.step, page.eta_step) == (alone.step, alone.eta_step)


def test_1_half_the_pace_is_another_program():
    def slow(step: int) -> int:
        return START + PACE * step // 2

    predecessor = before(leak, 460)
    alone, page = first_page(slow, None, 900), first_page(slow, predecessor, 900)
    assert alone is not None and page is not None
    assert (page.step, page.eta_step) == (alone.step, alone.eta_step)


def test_after_its_last_step_it_says_nothing():
    forecaster = Forecaster(LIMIT)
    forecaster.learn(predecessor=before(leak, 50))
    for step in range(60):
        forecast = forecaster.update(
            step, allocated_bytes=leak(step), peak_allocated_bytes=leak(step) + GIB
        )
    assert forecast.level == "ok" and forecast.predecessor is None


def test_growth_of_activations_is_compared_with_that_of_peaks():
    """The floor stays, peaks rise: a curriculum of longer inputs, as in the last run."""

    def page_of(predecessor):
        forecaster = Forecaster(LIMIT)
        forecaster.learn(predecessor=predecessor)
        for step in range(470):
            forecast = forecaster.update(
                step, allocated_bytes=GIB, peak_allocated_bytes=leak(step), time_s=10.0 * step
            )
            if forecast.level in PAGING_LEVELS:
                return forecast.step
        return None

    steps = tuple(range(0, 480, 8))
    peaks = tuple(map(leak, steps))
    predecessor = Predecessor("b", "oom", 479, LIMIT, steps, (GIB,) * len(steps), peaks)
    assert page_of(predecessor) < 60 < 400 < page_of(None)


@pytest.mark.parametrize("count", [1, 63, 64, 65, 128, 129, 1000, 5000])
def test_a_curve_has_few_points_however_long_the_run(count):
    curve = Curve()
    for step in range(count):
        curve.add(step, step, 7 if step == count // 2 else 0)
    points = curve.points()
    assert len(points) <= MAX_POINTS and points[-1][0] == count - 1
    assert all(first[0] < second[0] for first, second in pairwise(points))
    assert all(step == floor for step, floor, _ in points), "the floor is that of the last step"
    assert max(peak for _, _, peak in points) == 7


@pytest.mark.parametrize("status", ["stopped", "failed"])
def test_a_run_that_ended_before_its_plan_says_until_when_it_lived(status):
    sentence = before(flat, 1310, status).sentence(None)
    assert sentence.endswith("lived until step 1,310, at 11.00 GiB.")


def test_a_death_of_other_growth_is_no_death_on_the_same_path():
    assert before(leak, 460).sentence(None).endswith("ran out of memory at step 460.")


def test_it_travels_as_a_hint():
    hints = Hints(predecessor={"gpu": before(leak, 460)})
    assert Hints().merged_with(hints.to_data()) == hints
    broken = {"predecessor": {"gpu": {"run_id": "x"}}}
    assert hints.merged_with(broken) == hints


def test_a_forecaster_that_knows_it_survives_a_restart():
    forecaster = Forecaster(LIMIT)
    forecaster.learn(predecessor=before(leak, 460))
    for step in range(100):
        forecaster.update(step, allocated_bytes=leak(step), time_s=1.0 * step)
    restored = load_state(dump_state(forecaster))
    assert restored is not None
    assert restored.update(100, allocated_bytes=leak(100)) == forecaster.update(
        100, allocated_bytes=leak(100)
    )


def test_a_curve_with_missing_values_is_no_curve():
    data = to_builtins(before(leak, 460))
    with pytest.raises(ValidationError, match="as many floors and peaks as steps"):
        convert({**data, "floor_bytes": [1]}, Predecessor)


@pytest.mark.parametrize("steps", [(5, 5, 9), (9, 5, 7)], ids=["repeated", "backward"])
def test_a_curve_whose_steps_do_not_increase_is_no_curve(steps):
    curve = {**to_builtins(before(leak, 3)), "floor_bytes": (1, 2, 3), "peak_bytes": (1, 2, 3)}
    with pytest.raises(ValidationError, match="steps of a curve increase"):
        convert({**curve, "steps": steps}, Predecessor, strict=False)


def test_a_script_that_counts_again_from_zero_has_the_curve_of_its_first_count():
    curve = Curve()
    for step in (0, 1, 2, 0, 1, 2, 3):
        curve.add(step, 10 + step, 20 + step)
    assert [step for step, *_ in curve.points()] == [0, 1, 2, 3]


def test_a_predecessor_of_one_point_is_compared_without_an_error():
    one = Predecessor("b", "completed", 700, LIMIT, (700,), (START,), (START,))
    alone = first_page(leak, None)
    assert first_page(leak, one) == replace(alone, predecessor=one.sentence(None))
