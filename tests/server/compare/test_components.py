"""Predicted against observed bytes: by component, by level and by phase."""

from __future__ import annotations

import pytest
from msgspec import to_builtins

from memagent.units import GIB
from memagent.wire.messages import Batch, Chunk, Device, PredictionMessage, RunStart
from memagent_server.compare import components
from memagent_server.store.models import StreamRow
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


def row(comparison, name):
    return next((row for row in comparison.components if row.component == name), None)


def test_an_unknown_run_has_none(sqlite_database):
    with sqlite_database.read() as session:
        assert components(session, "nobody") is None


def test_observed_bytes_are_returned_without_a_prediction(observe):
    result = observe()
    assert (result.method, result.device, result.step) == (None, "D", 5)
    assert to_builtins(row(result, "parameters")) == {
        "component": "parameters",
        "predicted_bytes": None,
        "observed_bytes": 30,
        "residual_bytes": None,
        "reason": None,
    }
    assert row(result, "gradients") is None


def test_a_residual_is_observed_minus_predicted(observe):
    message = PredictionMessage(
        method="formula",
        device="D",
        peak_allocated_bytes=50,
        components={"parameters": 40, "context": 11},
    )
    result = observe(predictions=[message])
    assert row(result, "parameters").residual_bytes == -10
    assert row(result, "context").residual_bytes == 0
    assert to_builtins(result.peak) == {
        "predicted_bytes": 50,
        "observed_bytes": 90,
        "residual_bytes": 40,
    }


def test_fragmentation_is_what_the_caching_allocator_has_beyond_the_peak_of_tensors(observe):
    assert row(observe("cuda"), "fragmentation").observed_bytes == 10


def test_a_host_has_no_fragmentation(observe):
    assert row(observe("host"), "fragmentation") is None


def test_the_newest_prediction_counts_and_a_trace_before_a_formula(observe):
    predictions = [
        PredictionMessage(method=method, device="D", peak_allocated_bytes=peak)
        for method, peak in (("formula", 1), ("trace", 2), ("trace", 3), ("formula", 4))
    ]
    result = observe(predictions=predictions)
    assert (result.method, result.peak.predicted_bytes) == ("trace", 3)


def test_a_rank_without_a_prediction_takes_that_of_another(observe):
    message = PredictionMessage(method="formula", rank=1, device="E", peak_allocated_bytes=9)
    result = observe(predictions=[message])
    assert (result.rank, result.device, result.step) == (0, "D", 5)
    assert (result.peak.predicted_bytes, result.peak.observed_bytes) == (9, 90)


def test_a_prediction_for_the_host_is_none_for_a_gpu(observe):
    message = PredictionMessage(method="formula", device="host", peak_allocated_bytes=9)
    assert observe(predictions=[message]).method is None


def test_other_tensors_belong_to_no_component(observe):
    names = ("parameters", "gradients", "optimizer_state", "buffers")
    parts = {f"{name}_bytes": [10] for name in names}
    result = observe(readings={"step": [5], "allocated_bytes": [70], **parts})
    assert row(result, "other_tensors").observed_bytes == 30


def test_other_tensors_are_unknown_without_every_component(observe):
    parts = {f"{name}_bytes": [10] for name in ("parameters", "gradients")}
    unknown = observe(readings={"step": [5], "allocated_bytes": [70], **parts})
    assert row(unknown, "other_tensors") is None


def test_a_model_without_buffers_has_other_tensors(observe):
    parts = {f"{name}_bytes": [10] for name in ("parameters", "gradients", "optimizer_state")}
    result = observe(readings={"step": [5], "allocated_bytes": [70], **parts})
    assert row(result, "other_tensors").observed_bytes == 40


def test_the_last_known_reading_counts(observe):
    result = observe(readings={"step": [5, 6], "parameters_bytes": [30, None]})
    assert row(result, "parameters").observed_bytes == 30


def test_a_large_residual_has_a_reason_with_the_observed_inputs(observe):
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
    result = observe(readings=readings, predictions=[message])
    assert (
        row(result, "activations").reason
        == "inputs were 2.00 times as large as those of the prediction"
    )
    assert row(result, "parameters").reason is None


LEVEL_READINGS = {
    "step": [5, 6],
    "allocated_bytes": [70, 70],
    "peak_allocated_bytes": [95, 90],
    "peak_reserved_bytes": [120, 130],
    "process_device_bytes": [150, None],
    "phase_forward_peak_bytes": [80, 85],
    "phase_optimizer_peak_bytes": [95, 90],
    "phase_my_eval_peak_bytes": [60, None],
}
PREDICTION = PredictionMessage(
    method="trace",
    device="D",
    peak_allocated_bytes=94,
    peak_reserved_bytes=110,
    peak_device_bytes=160,
    intervals={"allocated": (92, 96), "reserved": (108, 120), "device": (140, 180)},
    phases={"forward": 85, "backward": 94, "optimizer": 70},
)


@pytest.fixture
def compare(observe):
    """The components of a run with readings and a prediction of every level."""

    def compare(kind="cuda", readings=LEVEL_READINGS, predictions=(PREDICTION,)):
        return observe(kind, readings, predictions)

    return compare


def test_each_level_has_its_interval_and_whether_the_run_lies_in_it(compare):
    allocated, reserved, device = compare().levels
    assert to_builtins(allocated) == {
        "level": "allocated", "predicted_bytes": 94, "observed_bytes": 95, "residual_bytes": 1, "low_bytes": 92, "high_bytes": 96,
        "is_within": True,
    }  # fmt: skip
    assert (reserved.level, reserved.observed_bytes, reserved.is_within) == ("reserved", 130, False)
    assert (device.level, device.observed_bytes, device.is_within) == ("device", 150, True)


def test_without_a_prediction_the_levels_are_observed_only(compare):
    for row in compare(predictions=()).levels:
        assert row.observed_bytes and row.predicted_bytes is row.low_bytes is row.is_within is None


def test_a_host_has_one_level(compare):
    bare = PredictionMessage(method="formula", device="D", peak_allocated_bytes=94)
    assert [row.level for row in compare(kind="host", predictions=[bare]).levels] == ["allocated"]


def test_phases_have_their_launch_peaks_in_step_order_then_user_phases(compare):
    results = {row.phase: (row.predicted_bytes, row.observed_bytes) for row in compare().phases}
    assert results == {
        "forward": (85, 85),
        "backward": (94, None),
        "optimizer": (70, 95),
        "my_eval": (None, 60),
    }
    assert list(results) == ["forward", "backward", "optimizer", "my_eval"]


def test_an_optimizer_phase_far_above_its_prediction_is_explained_by_temporaries(compare):
    prediction = PredictionMessage(
        method="trace", device="D", peak_allocated_bytes=1, phases={"optimizer": 2 * GIB}
    )
    readings = {"step": [1], "phase_optimizer_peak_bytes": [3 * GIB]}
    [row] = compare(readings=readings, predictions=[prediction]).phases
    assert "foreach" in row.reason


def test_a_later_lower_peak_does_not_lower_the_phase_peak(compare, sqlite_database):
    compare()
    with sqlite_database.write() as session:
        lower = {"step": [7], "phase_forward_peak_bytes": [1], "peak_reserved_bytes": [1]}
        add_batch(session, "r", Batch(seq=1, chunks=[Chunk(stream="D", columns=lower)]), 4.0)
        results = {row.phase: row.observed_bytes for row in components(session, "r").phases}
    assert results["forward"] == 85


def test_the_number_of_phases_of_a_stream_is_limited(compare, sqlite_database):
    for seq in range(3):
        columns = {"step": [seq], **{f"phase_p{seq * 40 + n}_peak_bytes": [1] for n in range(40)}}
        if seq == 0:
            compare(readings=columns, predictions=())
        else:
            with sqlite_database.write() as session:
                add_batch(
                    session, "r", Batch(seq=seq, chunks=[Chunk(stream="D", columns=columns)]), 4.0
                )
    with sqlite_database.read() as session:
        assert len(session.query(StreamRow).one().peaks) == 80


@pytest.mark.parametrize(("kind", "retained"), [("cuda", True), ("host", False)])
def test_a_leak_explains_the_phases_and_a_hosts_interpreter_is_none(compare, kind, retained):
    parts = {
        f"{name}_bytes": [0, 0]
        for name in ("parameters", "gradients", "optimizer_state", "buffers")
    }
    readings = {
        "step": [1, 2], "allocated_bytes": [GIB, 9 * GIB], "peak_allocated_bytes": [GIB, 9 * GIB], **parts,
        "context_bytes": [8 * GIB, 8 * GIB], "phase_forward_peak_bytes": [GIB, 9 * GIB],
    }  # fmt: skip
    forward = next(row for row in compare(kind, readings).phases if row.phase == "forward")
    assert ("like a leak" in forward.reason) == retained
