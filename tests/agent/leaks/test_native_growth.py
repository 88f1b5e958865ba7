"""The path to what allocates native memory that stays."""

from __future__ import annotations

import pytest

from memagent.leaks.native_growth import (
    MIN_BYTES_PER_STEP,
    MIN_STEPS,
    HalfWindow,
    native_growth,
    untraced_growth,
)

LOOP, LOAD, READ, MODEL, BACKWARD = (("train.py", line) for line in range(5))
LEAK = 100_000


def found(*steps, likely=(), start=(LOOP,)):
    return native_growth(steps * (MIN_STEPS + 2), start, set(likely).__contains__)


def path(*steps, **options):
    growth = found(*steps, **options)
    return growth and growth.path


def test_it_follows_the_calls_that_grow_as_the_process_does():
    step = {(LOOP, LOAD, READ): LEAK, (LOOP, LOAD): 500, (LOOP,): -300}
    growth = found(step)
    assert growth.path == (LOOP, LOAD, READ)
    assert growth.bytes_per_step == LEAK + 200
    assert growth.is_certain


def test_what_one_line_allocates_and_another_frees_is_no_leak():
    step = {(LOOP, MODEL): 9 * LEAK, (LOOP, BACKWARD): -9 * LEAK, (LOOP, LOAD): LEAK}
    assert path(step) == (LOOP, LOAD)
    assert found({(LOOP, MODEL): 9 * LEAK, (LOOP, BACKWARD): -9 * LEAK}) is None


def test_of_two_lines_that_fit_it_follows_the_one_that_calls_a_library():
    step = {(LOOP, LOAD, READ): LEAK, (LOOP, LOAD, MODEL): LEAK, (LOOP, LOAD): -LEAK}
    assert path(step, likely=[READ]) == (LOOP, LOAD, READ)
    growth = found(step)
    assert growth.path == (LOOP, LOAD)
    assert not growth.is_certain


def test_a_line_that_fits_is_found_in_a_call_that_also_makes_tensors():
    step = {(LOOP, MODEL, READ): LEAK, (LOOP, MODEL): 9 * LEAK, (LOOP, BACKWARD): -9 * LEAK}
    assert path(step, likely=[READ]) == (LOOP, MODEL, READ)


def test_the_first_step_and_the_last_one_do_not_count():
    noisy, quiet = {(LOOP, LOAD): 99 * LEAK}, {(LOOP, LOAD): LEAK}
    steps = [noisy, *[quiet] * MIN_STEPS, noisy]
    assert native_growth(steps, (LOOP,), lambda _: True).bytes_per_step == LEAK


def test_growth_must_be_steady_and_more_than_caches_take():
    once = {(LOOP, LOAD): LEAK * MIN_STEPS}
    nothing = dict.fromkeys(once, 0)
    steps = [nothing, once, *[nothing] * MIN_STEPS]
    assert native_growth(steps, (LOOP,), lambda _: True) is None
    assert found({(LOOP, LOAD): MIN_BYTES_PER_STEP - 1}) is None
    assert native_growth([{(LOOP, LOAD): LEAK}] * (MIN_STEPS + 1), (), lambda _: True) is None


def test_growth_at_every_third_step_is_steady():
    assert path({(LOOP, LOAD): 3 * LEAK}, {}, {}) == (LOOP, LOAD)


def test_what_only_the_loop_explains_has_no_path():
    assert path({(LOOP,): LEAK}) == ()
    assert path({(LOOP, LOAD): LEAK // 2, (LOOP, MODEL): LEAK // 2}) == ()
    assert path({(LOOP, LOAD): LEAK}, start=()) == (LOOP, LOAD)


@pytest.mark.parametrize(
    ("first", "second", "rate"),
    [
        ((10, 900_000, 100_000), (9, 810_000, 90_000), 80_000),
        ((10, 10_000, 0), (9, 810_000, 90_000), None),  # an evaluation in the second half
        ((10, 9_000_000, 0), (9, 810_000, 90_000), None),  # a warm-up in the first
        ((10, 900_000, 600_000), (9, 810_000, 540_000), None),  # most is Python's
        ((10, 160_000, 0), (9, 140_000, 0), None),  # as much as caches of a clean script
    ],
)
def test_growth_that_python_has_not_traced_must_be_in_both_halves(first, second, rate):
    assert untraced_growth(HalfWindow(*first), HalfWindow(*second)) == rate
