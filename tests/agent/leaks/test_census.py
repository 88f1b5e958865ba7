"""Census of live tensors: entries of an earlier one are shared only if nothing has changed."""

from __future__ import annotations

import pytest
import torch

from memagent.leaks import census
from memagent.leaks.census import GroupCount


def test_an_entry_is_shared_with_an_earlier_census():
    tensors = [torch.zeros(4), torch.zeros(2, 3, dtype=torch.int8)]
    first = census.take(1, tensors)
    second = census.take(2, [*tensors, new := torch.ones(5)], earlier=first)
    assert [second.entries[id(item)] is first.entries[id(item)] for item in tensors] == [True] * 2
    assert second.entries == census.take(2, [*tensors, new]).entries


def test_a_tensor_that_has_changed_gets_a_new_entry():
    tensors = [torch.zeros(4) for _ in range(4)]
    first = census.take(1, tensors)
    tensors[0].resize_(1_000)
    tensors[1].set_(torch.ones(4))
    tensors[2].unsqueeze_(0)
    second = census.take(2, tensors, earlier=first)
    are_shared = [second.entries[id(item)] is first.entries[id(item)] for item in tensors]
    assert are_shared == [False, False, False, True]
    assert second.entries == census.take(2, tensors).entries


def test_another_tensor_in_the_place_of_an_old_one_gets_its_own_entry():
    tensor = torch.zeros(4)
    first = census.take(1, [tensor])
    other = torch.zeros(9)
    entries = {id(other): first.entries[id(tensor)]}  # as if its id had been reused
    second = census.take(2, [other], earlier=census.Census(1, entries))
    assert second.entries[id(other)].shape == (9,)


def after(steps, count):
    """A census with that many tensors of one group, so many steps later."""
    tensors = [torch.zeros(1) for _ in range(count)]
    return census.take(steps, tensors)


@pytest.mark.parametrize(
    ("added", "burst", "has_slowed"),
    [(100, 10, False), (80, 10, False), (69, 10, True), (69, 40, False), (0, 40, True)],
    ids=["steady", "nearly", "slower", "one burst fewer", "stopped"],
)
def test_growth_has_slowed_down_if_no_pause_explains_how_little_was_added(added, burst, has_slowed):
    count = GroupCount(("cpu", "float32", 1), 0, 50, 1.0, burst)
    assert count.has_slowed_since(after(100, 50 + added)) is has_slowed


def test_a_count_knows_the_most_that_came_between_two_readings():
    growth = census.GroupGrowth([], 0, is_mostly_hidden=False, group=("cpu", "float32", 1))
    (count,) = census.group_counts([growth], after(0, 2), after(10, 9), after(20, 12))
    assert (count.count, count.per_step, count.burst) == (12, 0.5, 7)
