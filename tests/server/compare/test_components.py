"""Predicted beside observed."""

from __future__ import annotations

import pytest

from memagent.wire.messages import Batch, Chunk, Device, PredictionMessage, RunStart
from memagent_server.compare import components
from memagent_server.store.predictions import add_prediction
from memagent_server.store.runs import start_run
from memagent_server.store.samples import add_batch

READINGS = {
    "step": [5],
    "allocated_bytes": [70],
    "reserved_bytes": [100],
    "peak_allocated_bytes": [90],
    "peak_reserved_bytes": [100],
    "parameters_bytes": [30],
    "context_bytes": [11],
}


@pytest.fixture
def observe(sqlite_database):
    """A run whose device has these readings and these predictions."""

    def observe(kind="cuda", readings=READINGS, predictions=()):
        with sqlite_database.write() as session:
            device = Device(id="D", kind=kind, name="D")
            start_run(session, RunStart(run_id="r", devices=[device]), 1.0)
            add_batch(session, "r", Batch(seq=0, chunks=[Chunk(stream="D", columns=readings)]), 2.0)
            for prediction in predictions:
                add_prediction(session, "r", prediction, 3.0)
            return components(session, "r")

    return observe


def row(found, name):
    return next((row for row in found["components"] if row["component"] == name), None)


def test_an_unknown_run_has_none(sqlite_database):
    with sqlite_database.read() as session:
        assert components(session, "nobody") is None


def test_observed_is_shown_without_a_prediction(observe):
    found = observe()
    assert (found["method"], found["device"], found["step"]) == (None, "D", 5)
    assert row(found, "parameters") == {
        "component": "parameters",
        "predicted_bytes": None,
        "observed_bytes": 30,
        "residual_bytes": None,
        "reason": None,
    }
    assert row(found, "gradients") is None


def test_a_residual_is_observed_minus_predicted(observe):
    message = PredictionMessage(
        method="formula",
        device="D",
        peak_allocated_bytes=50,
        components={"parameters": 40, "context": 11},
    )
    found = observe(predictions=[message])
    assert row(found, "parameters")["residual_bytes"] == -10
    assert row(found, "context")["residual_bytes"] == 0
    assert found["peak"] == {"predicted_bytes": 50, "observed_bytes": 90, "residual_bytes": 40}


def test_fragmentation_is_what_the_caching_allocator_has_beyond_the_peak_of_tensors(observe):
    assert row(observe("cuda"), "fragmentation")["observed_bytes"] == 10


def test_a_host_has_no_fragmentation(observe):
    assert row(observe("host"), "fragmentation") is None


def test_the_newest_prediction_counts_and_a_trace_before_a_formula(observe):
    predictions = [
        PredictionMessage(method=method, device="D", peak_allocated_bytes=peak)
        for method, peak in (("formula", 1), ("trace", 2), ("trace", 3), ("formula", 4))
    ]
    found = observe(predictions=predictions)
    assert (found["method"], found["peak"]["predicted_bytes"]) == ("trace", 3)


def test_a_prediction_for_a_device_without_samples_stands_alone(observe):
    found = observe(
        predictions=[
            PredictionMessage(method="formula", rank=1, device="E", peak_allocated_bytes=9)
        ]
    )
    assert (found["rank"], found["device"], found["step"]) == (1, "E", None)
    assert found["peak"] == {"predicted_bytes": 9, "observed_bytes": None, "residual_bytes": None}


def test_what_was_measured_once_is_remembered(observe):
    found = observe(readings={"step": [5, 6], "parameters_bytes": [30, None]})
    assert row(found, "parameters")["observed_bytes"] == 30


def test_a_large_residual_has_a_reason_and_the_inputs_that_came_are_part_of_it(observe):
    gib = 2**30
    message = PredictionMessage(
        method="trace",
        device="D",
        peak_allocated_bytes=50 * gib,
        components={"activations": 10 * gib, "parameters": 10 * gib},
        assumptions={"inputs": [{"shape": [4, 512], "dtype": "int64"}]},
    )
    readings = {
        "step": [5],
        "input_size": [4 * 1024],
        "activations_bytes": [19 * gib],
        "parameters_bytes": [10 * gib + 5],
    }
    found = observe(readings=readings, predictions=[message])
    assert (
        row(found, "activations")["reason"]
        == "inputs were 2.00 times the size of those that the prediction saw"
    )
    assert row(found, "parameters")["reason"] is None
