"""Memory in use beyond the peak: one test for each rule of `memagent.forecast.overhead`."""

from __future__ import annotations

import pytest

from memagent.estimator.allocator import AllocatorConfig, CachingAllocator
from memagent.forecast.overhead import OtherProcesses, UnusableReserve

LIMIT = 1000


def reserve_after(*rows: dict) -> UnusableReserve:
    reserve = UnusableReserve()
    for row in rows:
        usual = {"floor": 400, "peak": 600, "reserved": 700, "split": 0, "retries": None}
        reserve.update(**{**usual, **row}, limit_bytes=LIMIT)
    return reserve


@pytest.mark.parametrize(
    ("split", "reserved", "at_least"),
    [(150, 700, 0), (200, 700, 0), (230, 700, 30), (450, 700, 100), (450, 600, 0), (450, 500, 0)],
)
def test_rule_1_a_step_reuses_free_pieces_up_to_its_excess(split, reserved, at_least):
    assert reserve_after({"split": split, "reserved": reserved}).at_least == at_least


def test_rule_2_the_rest_is_as_in_real_errors():
    reserve = reserve_after({"reserved": 900})
    assert (reserve.at_least, reserve.expected, reserve.at_most) == (0, 20, 160)
    small = reserve_after({"reserved": 610})
    assert (small.expected, small.at_most) == (10, 10)


def test_rule_3_a_retry_measures_what_is_unusable():
    first, retry, later = {"retries": 3}, {"retries": 4, "reserved": 650}, {"retries": 4}
    assert reserve_after(first, {"retries": 3}).expected == 20
    assert reserve_after(first, retry).expected == 50
    after = reserve_after(first, retry, later)
    assert (after.expected, after.at_most) == (50, 50)
    assert reserve_after(first, retry, {"retries": 5, "reserved": 605}).expected == 5


def test_rule_3_the_simulated_allocator_frees_nothing_more_after_a_retry():
    """Fill a device with split segments: what a retry leaves is the unusable reserve."""
    memory = CachingAllocator(AllocatorConfig(), 400 * 2**20)
    reserve = UnusableReserve()

    def update() -> None:
        stats = memory.stats
        reserve.update(
            floor=memory.allocated, peak=memory.peak_allocated, reserved=memory.reserved,
            split=stats.inactive_split_bytes.all.current, retries=stats.num_alloc_retries, limit_bytes=400 * 2**20,
        )  # fmt: skip

    blocks = [memory.malloc(30 * 2**20) for _ in range(4)]
    small = [memory.malloc(5 * 2**20) for _ in range(16)]  # four in each segment of 20 MiB
    for block in [*blocks, *(block for place, block in enumerate(small) if place % 4)]:
        memory.free(block)
    memory.reset_peak()
    update()
    memory.malloc(250 * 2**20)
    memory.reset_peak()
    update()
    assert memory.stats.num_alloc_retries == 1
    assert reserve.expected == memory.reserved - memory.allocated == 60 * 2**20


def others_after(*readings: tuple[float, float]) -> list[float]:
    others = OtherProcesses()
    found = []
    for device_used, reserved in readings:
        others.update(device_used, reserved)
        found.append(others.bytes)
    return found


def test_rule_4_a_cache_flush_under_an_old_reading_is_no_other_process():
    assert others_after((900, 800), (900, 500), (900, 500), (600, 500), (600, 500)) == [100] * 5


def test_rule_4_growth_before_the_next_reading_hides_no_other_process():
    assert others_after((900, 800), (900, 850), (950, 850), (950, 850)) == [100] * 4


def test_rule_4_an_unchanged_reserve_shows_what_others_use():
    assert others_after((900, 800), (930, 800), (850, 800), (800, 800)) == [100, 130, 50, 0]


def test_rule_4_others_change_as_little_as_the_bounds_allow():
    # the reading of 1000 was taken beside 500 to 800: others use 200 to 500
    assert others_after((900, 800), (900, 500), (1000, 500)) == [100, 100, 200]
    # 550 beside 500 to 800: at most 50
    assert others_after((900, 800), (900, 500), (550, 500)) == [100, 100, 50]
