"""Where a buffer ends: what fits raises no warning, what can't is as urgent as a list."""

from __future__ import annotations

from math import exp

import pytest

from memagent.forecast import Forecaster
from memagent.forecast.levels import KnownGrowth
from memagent.forecast.types import PAGING_LEVELS

MIB = 2**20
LIMIT = 1000 * MIB


def filling(end: int, *, rate: float = 1, told: int | None = None, limit: int = LIMIT) -> list:
    """Return the forecasts of memory that grows from 100 MiB until `end`, or the limit.

    told: what the finder says of the end at step 60.
    """
    forecaster, forecasts = Forecaster(limit), []
    for step in range(1200):
        held = min(end, round(100 * MIB + rate * step * MIB))
        if held > limit:
            break
        forecasts.append(forecaster.update(step, allocated_bytes=held))
        if step == 60:
            growing = "buffer" if told is not None else None
            forecaster.learn(grows=growing, growth_end_bytes=told)
    return forecasts


def first_page(forecasts: list) -> int | None:
    return next((one.step for one in forecasts if one.level in PAGING_LEVELS), None)


def test_3_a_buffer_that_fits_is_never_paged_and_no_notice():
    end = 900 * MIB
    assert first_page(filling(end)) is not None
    assert {one.level for one in filling(end, told=end)[62:]} == {"ok"}


def test_3_the_rest_may_be_off_by_a_tenth():
    """At step 60, 840 MiB are left to the limit: a rest of 764 MiB may need more."""
    known = KnownGrowth().learn("buffer", 924 * MIB, 160 * MIB)
    assert not known.fits(160 * MIB, 840 * MIB) and known.fits(160 * MIB, 841 * MIB)
    assert known.counts_as(160 * MIB, 688 * MIB) == "buffer"
    assert known.counts_as(160 * MIB, 687 * MIB) == "list"


def test_3_a_buffer_that_cannot_fit_pages_as_early_as_a_list():
    as_buffer = first_page(filling(2000 * MIB, told=2000 * MIB))
    forecaster = Forecaster(LIMIT)
    for step in range(900):
        forecast = forecaster.update(step, allocated_bytes=(100 + step) * MIB)
        if step == 60:
            forecaster.learn(grows="list")
        if forecast.level in PAGING_LEVELS:
            break
    assert as_buffer == forecast.step < 350


def test_4_memory_beyond_the_end_and_its_error_is_that_of_something_else():
    """A list grows beside the buffer: nothing is known of it, so it pages as a leak does."""
    pages = filling(2000 * MIB, told=300 * MIB)
    page = first_page(pages)
    assert page is not None and 200 < page < 800
    known = KnownGrowth().learn("buffer", 290 * MIB, 200 * MIB)
    # the rest was 100 MiB, told as a tenth less
    assert known.counts_as(300 * MIB, LIMIT) == "buffer"
    assert known.counts_as(301 * MIB, LIMIT) is None and not known.fits(301 * MIB, LIMIT)


def test_a_full_buffer_needs_nothing():
    known = KnownGrowth().learn("buffer", 300, 200)
    assert known.fits(300, -5) and known.fits(305, 0) and not known.fits(295, 5)
    assert known.counts_as(300, -5) == "buffer" and known.counts_as(295, -5) == "list"


def test_3_a_buffer_whose_end_is_unknown_is_a_cache():
    assert KnownGrowth().learn("buffer", None, 200).counts_as(200, 1000) == "cache"


@pytest.mark.parametrize("later", ["list", "unknown", "cache"])
def test_the_end_counts_for_a_buffer_only(later):
    known = KnownGrowth().learn("buffer", 300, 200).learn(later, None, 250)
    assert not known.fits(250, 1000) and known.counts_as(250, 10) == later
    again = known.learn("buffer", 300, 250)
    assert again.fits(250, 1000) and again.error_bytes == pytest.approx(100 / 9)


def warming_up(named: str, *, tau: float = 30.0, warm_up: int = 100) -> list:
    """Return the forecasts of a list that fills 1267 steps beside a warm-up, named at step 60."""

    def held(step: int) -> int:
        return round((100 + warm_up * (1 - exp(-step / tau)) + step / 2) * MIB)

    forecaster, forecasts = Forecaster(held(1267)), []
    for step in range(1267):
        forecasts.append(forecaster.update(step, allocated_bytes=held(step)))
        if step == 60:
            forecaster.learn(grows=named)
    return forecasts


@pytest.mark.parametrize(("tau", "warm_up"), [(30.0, 100), (40.0, 60), (80.0, 300)])
def test_a_list_is_read_straight_behind_the_bend_of_a_warm_up(tau, warm_up):
    forecasts = warming_up("list", tau=tau, warm_up=warm_up)
    page = first_page(forecasts)
    assert page is not None and page < 0.5 * 1267
    assert forecasts[page].eta_step == pytest.approx(1267, abs=0.1 * (1267 - page))
    assert {one.level for one in forecasts[page:]} <= set(PAGING_LEVELS), "it's never averted"


def test_what_may_end_is_read_with_its_bend():
    """Growth that slows down is paged later if nobody knows that nothing clears it."""
    unnamed, listed = first_page(warming_up("unknown")), first_page(warming_up("list"))
    assert unnamed is not None and listed is not None and listed < 0.8 * unnamed
