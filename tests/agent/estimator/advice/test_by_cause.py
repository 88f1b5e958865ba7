"""Advice by cause: texts, and the catalogue's changes with their savings in this run."""

from __future__ import annotations

import pytest

from memagent.estimator.advice.by_cause import CAUSES, advice_for_cause, code_for_kind
from memagent.leaks.suspect import KINDS
from memagent.wire.messages import AdviceItem, Suspect

GIB = 2**30
PREDICTED = [
    AdviceItem(change="Paged 8-bit Adam", saving_bytes=4 * GIB, code="paged"),
    AdviceItem(change="8-bit Adam", saving_bytes=3 * GIB, code="eight"),
    AdviceItem(change="Activation checkpointing", saving_bytes=2 * GIB, code="again"),
]


@pytest.mark.parametrize("cause", CAUSES)
def test_every_cause_has_texts_and_code(cause):
    result = advice_for_cause(cause)
    assert result.summary and result.change and result.code


def test_an_unknown_cause_has_its_own_text():
    assert "do not say why" in advice_for_cause("gremlins").summary
    assert advice_for_cause(None, PREDICTED) == advice_for_cause("")


def test_helping_changes_are_named_with_their_savings():
    result = advice_for_cause("optimizer_state", PREDICTED)
    assert result.change.endswith(
        "In this run: Paged 8-bit Adam saves 4.00 GiB, 8-bit Adam saves 3.00 GiB."
    )
    assert result.code == "paged"
    assert "Activation checkpointing saves 2.00 GiB." in advice_for_cause("input", PREDICTED).change


def test_other_changes_are_not_named():
    assert advice_for_cause("leak", PREDICTED) == advice_for_cause("leak")
    assert advice_for_cause("fragmentation", PREDICTED) == advice_for_cause("fragmentation")


def test_it_accepts_the_stores_dictionaries():
    stored = [
        {"change": "8-bit Adam", "saving_bytes": GIB, "cost": "", "code": "x", "added_later": 1}
    ]
    assert "8-bit Adam saves 1.00 GiB" in advice_for_cause("optimizer_state", stored).change


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_suspect_has_code_with_the_name_of_its_holder(kind):
    code = code_for_kind(kind, "self.kept['x']: list of 412")
    assert bool(code) == (kind != "allocation")
    assert "{" not in code and "self.kept['x']" not in code_for_kind(kind, "a frame's local")


def test_a_leak_has_the_code_for_its_suspect():
    suspect = Suspect(kind="dict", holder="cache: dict of 3 at step 9")
    leak = advice_for_cause("leak", (), suspect)
    assert leak.code.splitlines()[0] == "cache[key] = x.detach().cpu()  # not: cache[key] = x"
    unknown = Suspect(kind="allocation", holder="torch.zeros(9)")
    assert advice_for_cause("leak", (), unknown) == advice_for_cause("leak")
    assert advice_for_cause("tail", (), suspect) == advice_for_cause("tail")
