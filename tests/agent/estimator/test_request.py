"""Requests as data: another batch or sequence is another request. The engine dispatches by kind."""

from __future__ import annotations

from dataclasses import replace

import pytest

from memagent.errors import EstimateError
from memagent.estimator import engine
from memagent.estimator.formula.presets import preset
from memagent.estimator.formula.spec import TrainingSpec
from memagent.estimator.formula.training import estimate_formula, estimate_training
from memagent.estimator.request import FormulaRequest, TraceRequest
from memagent.units import GIB

SPEC = TrainingSpec(preset("gpt2"), batch=2, sequence=512)
TRACED = TraceRequest(None, ((8, 16), "int64"), targets=(((8,), "int64"), ((3, 8), "float32")))


def test_a_formula_request_is_resized_in_its_spec():
    request = FormulaRequest(SPEC, GIB, 0).resized(4, 128)
    assert request == FormulaRequest(replace(SPEC, batch=4, sequence=128), GIB, 0)
    assert (request.batch, request.sequence) == (4, 128)


def test_a_trace_request_is_resized_in_its_inputs_and_targets():
    request = TRACED.resized(4, None)
    assert request.inputs == ((4, 16), "int64")
    assert request.targets == (((4,), "int64"), ((3, 8), "float32"))
    assert TRACED.resized(8, None) is TRACED


def test_a_trace_request_cannot_change_its_sequence():
    with pytest.raises(EstimateError, match="change it in --input"):
        TRACED.resized(8, 32)


def test_inputs_without_a_tensor_have_no_batch():
    with pytest.raises(EstimateError, match="no tensor"):
        _ = replace(TRACED, inputs={"flag": True}).batch


def test_the_engine_estimates_a_formula_request_without_a_trace():
    request = FormulaRequest(SPEC, limit_bytes=GIB)
    result, trace = engine.estimate_and_trace(request)
    assert trace is None
    assert result == estimate_formula(request) == estimate_training(SPEC, limit_bytes=GIB)
