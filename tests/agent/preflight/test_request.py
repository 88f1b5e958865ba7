"""What `preflight=` takes, and what it says to what it does not take."""

from __future__ import annotations

from collections import UserDict
from dataclasses import dataclass

import pytest
import torch

import memagent
from memagent.errors import SettingError
from memagent.preflight import Request, requested

BATCH = torch.ones(2, 3)


def evaluate() -> None:
    return None


@pytest.mark.parametrize("nothing", [None, False])
def test_nothing_asked_is_nothing_tried(nothing):
    assert requested(nothing) is None


def test_true_asks_for_the_checkpoint_and_the_state_alone():
    assert requested(True) == Request(eval_batch=None, checkpoint=True)


@pytest.mark.parametrize(
    "batch",
    [
        BATCH,
        (BATCH, BATCH),
        [BATCH],
        {"input_ids": BATCH},
        UserDict(input_ids=BATCH),
        {"nested": {"x": [BATCH]}},
    ],
    ids=["tensor", "tuple", "list", "dict", "mapping", "nested"],
)
def test_a_batch_of_any_kind_is_evaluated(batch):
    found = requested(batch)
    assert found.eval_batch is batch and found.checkpoint is True


def test_a_mapping_or_dataclass_says_which():
    @dataclass
    class Mine:
        eval_batch: object
        checkpoint: object = False

    assert requested({"eval_batch": BATCH, "checkpoint": False}) == Request(BATCH, False)
    assert requested({"checkpoint": evaluate}) == Request(None, evaluate)
    assert requested(Mine(evaluate)) == Request(evaluate, False)
    assert requested(Request(evaluate, None)) == Request(evaluate, False)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (3, "preflight is a int: give True, a batch"),
        ("yes", "preflight is a str"),
        ([], "preflight is a list"),
        ({}, "preflight is a dict"),
        ({"labels": [1, 2]}, "preflight is a dict"),
        (evaluate, "preflight is a function"),
        ({"eval_batch": BATCH, "evaluate": 1}, "preflight has no evaluate"),
        ({"eval_batch": 3}, "eval_batch is a int"),
        (
            {"eval_batch": torch.utils.data.DataLoader([1, 2])},
            "eval_batch is a loader: give one batch",
        ),
        ({"eval_batch": iter([BATCH])}, "eval_batch is a loader"),
        ({"checkpoint": "model.pt"}, "checkpoint is 'model.pt': give True, False, or a callable"),
    ],
)
def test_attach_says_what_is_wrong_before_anything_is_watched(training, value, words):
    model, optimizer, _ = training
    with pytest.raises(SettingError, match=words):
        memagent.attach(model, optimizer, preflight=value)
    assert not optimizer._optimizer_step_pre_hooks
