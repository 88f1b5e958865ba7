"""The sorted set behind the pools, compared with a sorted list."""

from __future__ import annotations

from bisect import bisect_left

from hypothesis import given, settings
from hypothesis import strategies as st

from memagent.estimator.allocator.blocks import AddressRange, Block, Pool, SortedIntSet, link


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


def test_its_runs_are_short():
    ascending, descending = SortedIntSet(), SortedIntSet()
    for number in range(5_000):
        ascending.add(number)
        descending.add(5_000 - number)
    for numbers in (ascending, descending):
        lengths = [len(run) for run in numbers._runs]
        assert max(lengths) <= 1024 and min(lengths) >= 512
        assert numbers._lasts == [run[-1] for run in numbers._runs]
        for number in range(1, 5_000):
            numbers.remove(number)
        assert len(numbers._runs) == len(numbers._lasts) == 1
    assert (list(ascending), list(descending)) == ([0], [5_000])


def test_a_run_is_divided_in_the_middle():
    numbers = SortedIntSet()
    for number in range(1024):
        numbers.add(number)
    assert [len(run) for run in numbers._runs] == [1024]
    numbers.add(1024)
    assert [len(run) for run in numbers._runs] == [512, 513]
    assert numbers._lasts == [511, 1024]
    numbers.remove(511)
    assert numbers._lasts == [510, 1024]


# Pools


def pool_of(*blocks: tuple[int, int]) -> tuple[Pool, list[Block]]:
    pool = Pool(0, small=False)
    free = [Block(address, size, pool) for address, size in blocks]
    for block in free:
        pool.add(block)
    return pool, free


def test_the_best_fit_is_the_smallest_at_the_lowest_address():
    pool, (far, large, near) = pool_of((4096, 1024), (0, 2048), (2048, 1024))
    assert pool.free_blocks() == [near, far, large]
    assert [pool.best_fit(size) for size in (512, 1024, 1025, 2048, 2049)] == [
        near, near, large, large, None,
    ]  # fmt: skip
    assert [pool.next_fit(block) for block in (near, far, large)] == [far, large, None]
    pool.remove(near)
    assert (pool.best_fit(1), len(pool)) == (far, 2)


def test_addresses_of_57_bits_do_not_disturb_the_order_of_sizes():
    pool, (high, low) = pool_of((2**57 - 512, 512), (0, 1024))
    assert pool.free_blocks() == [high, low]
    assert pool.best_fit(513) is low
    assert pool.next_fit(high) is low


def test_a_free_block_remembers_the_searches_of_its_pool():
    pool, _ = pool_of()
    pool.searches = 7
    block = Block(0, 512, pool)
    pool.add(block)
    assert (block.gc_base, pool.stream, pool.small, pool.unmapped) == (7, 0, False, [])


def test_blocks_are_linked_on_both_sides():
    pool, (first, second, third) = pool_of((0, 1), (1, 1), (2, 1))
    assert not second.is_split()
    link(second, first, third)
    assert (first.next, second.prev, second.next, third.prev) == (second, first, third, second)
    assert first.is_split() and second.is_split() and third.is_split()
    link(second, None, None)
    assert not second.is_split()


def test_a_new_block_is_free_mapped_and_unlike_any_other():
    pool = Pool(0, small=True)
    block, same = Block(0, 512, pool), Block(0, 512, pool)
    assert block != same and block == block
    assert (block.requested, block.allocated, block.busy, block.mapped) == (0, False, False, True)
    assert (block.prev, block.next, block.expandable, block.gc_base, block.id) == (
        None, None, None, 0, 0,
    )  # fmt: skip
    assert AddressRange(0, 1, 2) != AddressRange(0, 1, 2)
    for one in (block, AddressRange(0, 1, 2)):
        assert not hasattr(one, "__dict__")
