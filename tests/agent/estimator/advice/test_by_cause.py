"""Advice by cause: words of its own, and the catalogue's changes with what they save in this run."""

from __future__ import annotations

import pytest

from memagent.estimator.advice.by_cause import CAUSES, advice_for_cause
from memagent.estimator.advice.catalog import CHANGES, KEYS_BY_NAME, are_compatible
from memagent.estimator.advice.program_changes import SmallerBatch
from memagent.wire.messages import AdviceItem

GIB = 2**30
PREDICTED = [
    AdviceItem(change="Paged 8-bit Adam", saving_bytes=4 * GIB, code="paged"),
    AdviceItem(change="8-bit Adam", saving_bytes=3 * GIB, code="eight"),
    AdviceItem(change="Activation checkpointing", saving_bytes=2 * GIB, code="again"),
]


@pytest.mark.parametrize("cause", CAUSES)
def test_every_cause_has_words_and_lines_of_code(cause):
    found = advice_for_cause(cause)
    assert found.summary and found.change and found.code


def test_a_cause_that_is_not_known_says_so():
    assert "do not say why" in advice_for_cause("gremlins").summary
    assert advice_for_cause(None, PREDICTED) == advice_for_cause("")


def test_what_helps_is_named_with_its_saving_in_this_run():
    found = advice_for_cause("optimizer_state", PREDICTED)
    assert found.change.endswith(
        "In this run: Paged 8-bit Adam saves 4.00 GiB, 8-bit Adam saves 3.00 GiB."
    )
    assert found.code == "paged"
    assert "Activation checkpointing saves 2.00 GiB." in advice_for_cause("input", PREDICTED).change


def test_what_does_not_help_against_the_cause_is_not_named():
    assert advice_for_cause("leak", PREDICTED) == advice_for_cause("leak")
    assert advice_for_cause("fragmentation", PREDICTED) == advice_for_cause("fragmentation")


def test_the_stores_dictionaries_do_as_well():
    stored = [
        {"change": "8-bit Adam", "saving_bytes": GIB, "cost": "", "code": "x", "added_later": 1}
    ]
    assert "8-bit Adam saves 1.00 GiB" in advice_for_cause("optimizer_state", stored).change


def test_names_and_keys_are_one_to_one_and_costs_are_said():
    assert (
        len({change.key for change in CHANGES})
        == len({change.name for change in CHANGES})
        == len(CHANGES)
    )
    assert set(KEYS_BY_NAME.values()) == {SmallerBatch.key, *(change.key for change in CHANGES)}
    assert all(change.cost and change.effect.endswith(".") for change in CHANGES)


def test_a_change_goes_with_itself_and_not_with_its_rivals():
    by_key = {change.key: change for change in CHANGES}
    assert are_compatible((by_key["lora"], by_key["checkpointing"]))
    assert not are_compatible((by_key["lora"], by_key["qlora"]))
    assert not are_compatible((by_key["offload_parameters"], by_key["zero_3"]))
