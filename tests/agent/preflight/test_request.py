"""Values that `preflight=` accepts, and errors for the others."""

from __future__ import annotations

from collections import UserDict
from dataclasses import dataclass

import pytest
import torch

import memagent
from memagent.errors import SettingError
from memagent.preflight import PreflightRequest, parse_preflight

BATCH = torch.ones(2, 3)


def evaluate() -> None:
    return None


@pytest.mark.parametrize("nothing", [None, False])
def test_no_request_is_none(nothing):
    assert parse_preflight(nothing) is None


def test_true_requests_the_checkpoint_only():
    assert parse_preflight(True) == PreflightRequest(eval_batch=None, checkpoint=True)


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
def test_it_accepts_batches_of_any_type(batch):
    request = parse_preflight(batch)
    assert request.eval_batch is batch and request.checkpoint is True


def test_it_accepts_options_in_a_mapping_or_dataclass():
    @dataclass
    class Mine:
        eval_batch: object
        checkpoint: object = False

    assert parse_preflight({"eval_batch": BATCH, "checkpoint": False}) == PreflightRequest(
        BATCH, False
    )
    assert parse_preflight({"checkpoint": evaluate}) == PreflightRequest(None, evaluate)
    assert parse_preflight(Mine(evaluate)) == PreflightRequest(evaluate, False)
    assert parse_preflight(PreflightRequest(evaluate, None)) == PreflightRequest(evaluate, False)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (3, "preflight cannot be a int: pass True, a batch"),
        ("yes", "preflight cannot be a str"),
        ([], "preflight cannot be a list"),
        ({}, "preflight cannot be a dict"),
        ({"labels": [1, 2]}, "preflight cannot be a dict"),
        (evaluate, "preflight cannot be a function"),
        ({"eval_batch": BATCH, "evaluate": 1}, "Unknown preflight options: evaluate"),
        ({"eval_batch": 3}, "got a int"),
        (
            {"eval_batch": torch.utils.data.DataLoader([1, 2])},
            "eval_batch is a loader: pass one of its batches",
        ),
        ({"eval_batch": iter([BATCH])}, "eval_batch is a loader"),
        (
            {"checkpoint": "model.pt"},
            "checkpoint must be True, False, or a callable .* got 'model.pt'",
        ),
    ],
)
def test_attach_rejects_an_invalid_request_before_any_hook(training, value, message):
    model, optimizer, _ = training
    with pytest.raises(SettingError, match=message):
        memagent.attach(model, optimizer, preflight=value)
    assert not optimizer._optimizer_step_pre_hooks
