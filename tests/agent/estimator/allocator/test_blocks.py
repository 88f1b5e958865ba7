"""The sorted set behind the pools, compared with a sorted list."""

from __future__ import annotations

from bisect import bisect_left

from hypothesis import given, settings
from hypothesis import strategies as st

from memagent.estimator.allocator.blocks import SortedIntSet


@settings(deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 60))))
def test_it_behaves_like_a_sorted_list(steps):
    sorted_set, plain = SortedIntSet(), []
    for add, number in steps:
        if add and number not in plain:
            sorted_set.add(number)
            plain = sorted([*plain, number])
        elif not add and number in plain:
            sorted_set.remove(number)
            plain.remove(number)
        where = bisect_left(plain, number)
        assert sorted_set.at_least(number) == (plain[where] if where < len(plain) else -1)
        assert list(sorted_set) == plain
        assert len(sorted_set) == len(plain)


def test_it_stays_ordered_over_many_thousands():
    sorted_set = SortedIntSet()
    numbers = [(number * 7919) % 20_011 for number in range(20_000)]
    for number in numbers:
        sorted_set.add(number)
    assert list(sorted_set) == sorted(numbers)
    assert sorted_set.at_least(12_345) == min(number for number in numbers if number >= 12_345)
    for number in numbers[:19_990]:
        sorted_set.remove(number)
    assert list(sorted_set) == sorted(numbers[19_990:])
