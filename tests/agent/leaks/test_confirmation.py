"""Suspects of host memory stand while what is allocated grows as they say."""

from __future__ import annotations

import pytest
import torch

from memagent.leaks import census
from memagent.leaks.census import GroupCount
from memagent.leaks.confirmation import HOST_KINDS, GrowthCheck, HostGrowthCheck, without
from memagent.leaks.suspect import Diagnosis
from memagent.wire.messages import Suspect

RATE, FIRST = 1_000.0, 5_000_000


def suspect(kind="host", rate=RATE):
    return Suspect(kind=kind, holder="rows", file="train.py", line=1, bytes_per_step=rate, confidence=1.0, fix="")  # fmt: skip


HOST = (suspect(),)


def checks(*used_bytes, suspects=HOST, first=FIRST):
    """The verdict of a check every 100 steps after the diagnosis at step 50."""
    check = HostGrowthCheck(suspects, 50, first)
    return bool(check) and [
        check.has_stopped(150 + 100 * index, used) for index, used in enumerate(used_bytes)
    ]


def grown(*steps):
    return [FIRST + int(RATE * count) for count in steps]


@pytest.mark.parametrize(
    ("used_bytes", "expected"),
    [
        (grown(100, 200, 300), [False, False, False]),
        (grown(0, 0), [False, True]),
        (grown(-500, 100, 200), [False, False, False]),
        (grown(100, 100, 100, 200), [False, False, True, False]),
        (grown(100, 0, 100, 0), [False, True, False, True]),
        (grown(40, 80, 120), [False, False, False]),
        ([None, None], [False, False]),
    ],
    ids=["leak", "full", "freed once", "full later", "flushed", "slower", "unknown"],
)
def test_growth_has_stopped_if_little_was_added_since_then_or_between_two_checks(
    used_bytes, expected
):
    assert checks(*used_bytes) == expected


@pytest.mark.parametrize(
    ("suspects", "first"), [((suspect("list"),), FIRST), ((suspect(),), None), ((), FIRST)]
)
def test_there_is_nothing_to_check_without_host_suspects_or_readings(suspects, first):
    assert checks(0, 0, suspects=suspects, first=first) is False


def test_a_check_without_growth_is_to_be_confirmed_soon():
    check = HostGrowthCheck(HOST, 0, FIRST)
    for step, used, expected in ((100, 100, False), (200, 110, True), (300, 210, False)):
        check.has_stopped(step, grown(used)[0])
        assert check.may_have_stopped is expected


@pytest.mark.parametrize(
    ("steps", "growth", "expected"),
    [
        ((60, 120), 900, True),
        ((60, 120), 400, False),
        ((80, 160), 900, False),
        ((60, 120), None, False),
    ],
    ids=["slower", "as measured", "as fast", "no table"],
)
def test_4_a_table_that_grows_more_slowly_is_withdrawn(steps, growth, expected):
    check = HostGrowthCheck(HOST, 50, FIRST, growth)
    verdicts = [
        check.has_stopped(150 + 100 * index, used) for index, used in enumerate(grown(*steps))
    ]
    assert verdicts[-1] is expected


@pytest.mark.parametrize(("burst_steps", "expected"), [(30, True), (45, False)])
def test_4_one_burst_fewer_does_not_withdraw_a_table(burst_steps, expected):
    check = HostGrowthCheck(HOST, 50, FIRST, 900, burst_steps)
    verdicts = [
        check.has_stopped(150 + 100 * index, used) for index, used in enumerate(grown(60, 110))
    ]
    assert verdicts[-1] is expected


def test_4_tensors_in_a_table_no_longer_grow_once_they_have_slowed_down():
    count = GroupCount(("cpu", "float32", 1), 0, 0, 1.0, 10)
    later = census.take(100, [torch.zeros(1) for _ in range(50)])
    assert GrowthCheck([count]).goes_on(later)
    assert not GrowthCheck([count], is_keyed=True).goes_on(later)


def test_only_host_suspects_are_withdrawn():
    both = Diagnosis(step=9, first_step=0, pause_s=0.0, suspects=(suspect("list"), suspect()))
    rest, stopped = without(both, HOST_KINDS)
    assert [item.kind for item in rest.suspects] == ["list"]
    assert [item.kind for item in stopped] == ["host"]
