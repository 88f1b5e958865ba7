"""Rehearsals reach the runs that start with their fingerprint."""

from __future__ import annotations

import pytest

from memagent.units import GIB
from memagent_server.store import rehearsals
from memagent_server.store.rehearsals import MAX_REHEARSALS

DEVICE = {"id": "GPU-1", "kind": "cuda", "name": "NVIDIA L4"}
RUN = {"run_id": "r", "fingerprint": "f", "devices": [DEVICE, {**DEVICE, "id": "GPU-2"}]}


@pytest.fixture
def rehearsed(client):
    """Post a rehearsal, and return its id."""

    def post(peak=1, **fields):
        body = {
            "fingerprint": "f",
            "script": "train.py 8",
            "gpu": "NVIDIA A100",
            "fits": True,
            "prediction": {"method": "rehearsal", "peak_allocated_bytes": peak},
            **fields,
        }
        response = client.post("/api/v1/rehearsals", json=body)
        assert response.status_code == 201
        return response.get_json()["id"]

    return post


@pytest.fixture
def predicted(client):
    """Start a run, and return the peaks that are predicted for it."""

    def start(**fields):
        assert client.post("/api/v1/runs", json={**RUN, **fields}).status_code in (200, 201)
        body = client.get("/api/v1/runs/r/predictions").get_json()
        return [row["peak_allocated_bytes"] for row in body["predictions"]]

    return start


def test_a_run_of_the_same_script_gets_the_prediction(client, rehearsed, predicted):
    rehearsed(7 * GIB)
    assert predicted() == [7 * GIB]
    assert predicted() == [7 * GIB], "a launch that resumes adds none"
    (prediction,) = client.get("/api/v1/runs/r/predictions").get_json()["predictions"]
    assert (prediction["method"], prediction["rank"], prediction["device"]) == (
        "rehearsal",
        0,
        "GPU-1",
    )
    assert prediction["assumptions"]["script"] == "train.py 8"
    assert prediction["assumptions"]["gpu"] == "NVIDIA A100"


@pytest.mark.parametrize(
    "fields",
    [
        {"fingerprint": "g"},
        {"fingerprint": None},
        {"project": "other"},
        {"world_size": 8},
        {"rank": 1, "world_size": 2},
        {"devices": [{"id": "host", "kind": "host", "name": "box"}]},
    ],
)
def test_another_run_gets_none(rehearsed, predicted, fields):
    rehearsed()
    assert predicted(**fields) == []


def test_the_runs_own_card_counts_before_a_newer_rehearsal(rehearsed, predicted):
    rehearsed(1, gpu="NVIDIA L4")
    rehearsed(2)
    assert predicted() == [1]


def test_one_that_ran_out_of_memory_counts_for_its_card_only(rehearsed, predicted):
    rehearsed(1)
    rehearsed(2, fits=False)
    assert predicted() == [1]
    rehearsed(3, gpu="NVIDIA L4", fits=False)
    assert predicted() == [3, 1]


def test_the_newest_of_a_fingerprint_are_kept_and_listed(client, rehearsed):
    other = rehearsed(fingerprint="g")
    ids = [rehearsed() for _ in range(MAX_REHEARSALS + 2)]
    rows = client.get("/api/v1/rehearsals").get_json()["rehearsals"]
    assert [row["id"] for row in rows] == [*ids[:1:-1], other]
    assert client.get("/api/v1/rehearsals?project=x").get_json()["rehearsals"] == []
    pages = client.get("/estimate", headers={"Accept": "text/html"}).get_data(as_text=True)
    assert "Newest rehearsals" in pages
    assert "train.py 8" in pages


def test_the_newest_of_a_project_are_kept(client, rehearsed, monkeypatch):
    """Each edit of a script has another fingerprint."""
    monkeypatch.setattr(rehearsals, "MAX_OF_PROJECT", 2)
    elsewhere = rehearsed(project="elsewhere")
    ids = [rehearsed(fingerprint=f"edit-{number}") for number in range(4)]
    rows = client.get("/api/v1/rehearsals").get_json()["rehearsals"]
    assert [row["id"] for row in rows] == [*ids[:1:-1], elsewhere]


def test_it_counts_before_a_trace_that_keeps_its_advice(client, rehearsed, predicted):
    rehearsed(7 * GIB)
    predicted()
    advice = [{"change": "Checkpoint the layers", "saving_bytes": GIB}]
    traced = {"method": "trace", "device": "GPU-1", "peak_allocated_bytes": 9, "advice": advice}
    client.post("/api/v1/runs/r/predictions", json=traced)
    assert client.get("/api/v1/runs/r").get_json()["predicted_peak_bytes"] == 7 * GIB
    compared = client.get("/api/v1/runs/r/components").get_json()
    assert (compared["method"], compared["peak"]["predicted_bytes"]) == ("rehearsal", 7 * GIB)
    html = client.get("/runs/r", headers={"Accept": "text/html"}).get_data(as_text=True)
    assert "The prediction of its rehearsal on NVIDIA A100" in html
    assert "Checkpoint the layers" in html
