"""The environment of one rank of many."""

from __future__ import annotations

from memagent.rehearsal.ranks import rank_environment


def test_one_rank_has_no_variables_of_a_launcher() -> None:
    assert rank_environment(1, devices=8) == {}


def test_the_first_rank_is_that_of_the_first_machine() -> None:
    variables = rank_environment(16, devices=8)
    assert (variables["RANK"], variables["LOCAL_RANK"]) == ("0", "0")
    assert (variables["WORLD_SIZE"], variables["LOCAL_WORLD_SIZE"]) == ("16", "8")
    assert variables["GROUP_WORLD_SIZE"] == "2"


def test_ranks_without_a_device_each_share_them() -> None:
    assert rank_environment(4, devices=1)["LOCAL_WORLD_SIZE"] == "1"
