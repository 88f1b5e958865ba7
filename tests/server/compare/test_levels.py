"""Predicted beside observed, by level and by phase."""

from __future__ import annotations

import pytest

from memagent.units import GIB
from memagent.wire.messages import Batch, Chunk, Device, PredictionMessage, RunStart
from memagent_server.compare import components
from memagent_server.store.models import Stream
from memagent_server.store.predictions import add_prediction
from memagent_server.store.runs import start_run
from memagent_server.store.samples import add_batch

READINGS = {
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
def compare(sqlite_database):
    """What GET /components says of a run with these readings and these predictions."""

    def compare(kind="cuda", readings=READINGS, predictions=(PREDICTION,)):
        with sqlite_database.write() as session:
            start_run(
                session, RunStart(run_id="r", devices=[Device(id="D", kind=kind, name="D")]), 1.0
            )
            add_batch(session, "r", Batch(seq=0, chunks=[Chunk(stream="D", columns=readings)]), 2.0)
            for prediction in predictions:
                add_prediction(session, "r", prediction, 3.0)
            return components(session, "r")

    return compare


def test_each_level_has_its_own_interval_and_says_whether_the_run_lies_in_it(compare):
    allocated, reserved, device = compare()["levels"]
    assert allocated == {
        "level": "allocated", "predicted_bytes": 94, "observed_bytes": 95, "residual_bytes": 1, "low_bytes": 92, "high_bytes": 96,
        "is_within": True,
    }  # fmt: skip
    assert (reserved["level"], reserved["observed_bytes"], reserved["is_within"]) == (
        "reserved",
        130,
        False,
    )
    assert (device["level"], device["observed_bytes"], device["is_within"]) == ("device", 150, True)


def test_without_a_prediction_the_levels_are_observed_only(compare):
    for row in compare(predictions=())["levels"]:
        assert (
            row["observed_bytes"]
            and row["predicted_bytes"] is row["low_bytes"] is row["is_within"] is None
        )


def test_a_host_has_one_level(compare):
    bare = PredictionMessage(method="formula", device="D", peak_allocated_bytes=94)
    assert [row["level"] for row in compare(kind="host", predictions=[bare])["levels"]] == [
        "allocated"
    ]


def test_phases_are_the_highest_of_the_launch_in_the_order_of_a_step_with_the_users_own_after_them(
    compare,
):
    found = {
        row["phase"]: (row["predicted_bytes"], row["observed_bytes"]) for row in compare()["phases"]
    }
    assert found == {
        "forward": (85, 85),
        "backward": (94, None),
        "optimizer": (70, 95),
        "my_eval": (None, 60),
    }
    assert list(found) == ["forward", "backward", "optimizer", "my_eval"]


def test_an_optimizer_phase_far_above_its_prediction_is_put_down_to_temporaries(compare):
    prediction = PredictionMessage(
        method="trace", device="D", peak_allocated_bytes=1, phases={"optimizer": 2 * GIB}
    )
    readings = {"step": [1], "phase_optimizer_peak_bytes": [3 * GIB]}
    [row] = compare(readings=readings, predictions=[prediction])["phases"]
    assert "foreach" in row["reason"]


def test_a_later_lower_peak_does_not_lower_what_was_seen(compare, sqlite_database):
    compare()
    with sqlite_database.write() as session:
        lower = {"step": [7], "phase_forward_peak_bytes": [1], "peak_reserved_bytes": [1]}
        add_batch(session, "r", Batch(seq=1, chunks=[Chunk(stream="D", columns=lower)]), 4.0)
        found = {row["phase"]: row["observed_bytes"] for row in components(session, "r")["phases"]}
    assert found["forward"] == 85


def test_a_script_that_invents_a_phase_a_step_does_not_grow_its_stream(compare, sqlite_database):
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
        assert len(session.query(Stream).one().peaks) == 80


@pytest.mark.parametrize(("kind", "kept"), [("cuda", True), ("host", False)])
def test_a_leak_explains_the_phases_and_a_hosts_interpreter_is_none(compare, kind, kept):
    parts = {
        f"{name}_bytes": [0, 0]
        for name in ("parameters", "gradients", "optimizer_state", "buffers")
    }
    readings = {
        "step": [1, 2], "allocated_bytes": [GIB, 9 * GIB], "peak_allocated_bytes": [GIB, 9 * GIB], **parts,
        "context_bytes": [8 * GIB, 8 * GIB], "phase_forward_peak_bytes": [GIB, 9 * GIB],
    }  # fmt: skip
    forward = next(row for row in compare(kind, readings)["phases"] if row["phase"] == "forward")
    assert ("a leak does that" in forward["reason"]) == kept
