"""Census of live tensors: entries of an earlier one are shared only if nothing has changed."""

from __future__ import annotations

import torch

from memagent.leaks import census


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
