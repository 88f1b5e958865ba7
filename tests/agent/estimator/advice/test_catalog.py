"""The catalogue: compatible changes, and the smallest set that fits."""

from __future__ import annotations

import pytest

from memagent.estimator.advice.catalog import CHANGES, KEYS_BY_NAME, are_compatible, smallest_set
from memagent.estimator.advice.program_changes import SmallerBatch


@pytest.mark.parametrize("tries", [0, 4000])
def test_no_change_of_a_set_can_be_left_out(tries):
    needed = {"attention", "checkpointing", "eight_bit"}
    tried_sets = []

    def fits(chosen):
        tried_sets.append(chosen)
        return needed <= {change.key for change in chosen}

    changes = [
        change for change in CHANGES if change.key != "optimizer_step"
    ]  # which excludes the 8-bit one
    result = smallest_set(changes, fits, max_tries=tries)
    assert {change.key for change in result} == needed
    assert smallest_set(CHANGES, lambda chosen: False, max_tries=tries) is None


def test_changes_that_exclude_each_other_are_never_combined():
    tried_sets = []
    smallest_set(CHANGES, lambda chosen: bool(tried_sets.append(chosen)), max_tries=4000)
    keys = [{change.key for change in chosen} for chosen in tried_sets]
    assert {"zero_1", "checkpointing"} in keys
    assert not any(
        {"lora", "qlora"} <= chosen or {"eight_bit", "paged"} <= chosen for chosen in keys
    )


def test_names_and_keys_are_one_to_one():
    assert (
        len({change.key for change in CHANGES})
        == len({change.name for change in CHANGES})
        == len(CHANGES)
    )
    assert set(KEYS_BY_NAME.values()) == {SmallerBatch.key, *(change.key for change in CHANGES)}
    assert all(change.cost and change.effect.endswith(".") for change in CHANGES)


def test_a_change_is_not_compatible_with_those_it_excludes():
    by_key = {change.key: change for change in CHANGES}
    assert are_compatible((by_key["lora"], by_key["checkpointing"]))
    assert not are_compatible((by_key["lora"], by_key["qlora"]))
    assert not are_compatible((by_key["offload_parameters"], by_key["zero_3"]))
