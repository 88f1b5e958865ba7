"""Rehearsals are stored on the configured server, for the real runs of their script."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from memagent.delivery.api_client import ApiClient
from memagent.record.fingerprint import Launch, fingerprint
from memagent.rehearsal.launch import Machine, cuda_card
from memagent.rehearsal.prediction import message_of, store
from memagent.rehearsal.report import Rehearsal
from memagent.rehearsal.script import Script
from memagent.units import GIB
from tests.conftest import LiveServer


@pytest.fixture
def script(tmp_path: Path) -> Script:
    path = tmp_path / "train.py"
    path.write_text("import os; batch = os.environ['BATCH']")
    return Script(str(path), ["8", "--api-key=secret"], variables={"BATCH": "8"})


def result(status: str = "stopped") -> Rehearsal:
    return Rehearsal(
        Machine(cuda_card("a100-40gb"), ranks=8),
        status,
        steps=3,
        peak_allocated_bytes=2 * GIB,
        peak_reserved_bytes=3 * GIB,
        components={"parameters": GIB, "buffers": None},
        versions={"torch": "2.14.1"},
        project="nlp",
    )


def test_its_fingerprint_is_that_of_the_real_run(script: Script) -> None:
    message = message_of(result(), script)
    launch = Launch.of_target(script.target, script.arguments)
    assert message is not None
    assert launch is not None
    assert message.fingerprint == fingerprint(launch, {"BATCH": "8"})
    assert (message.project, message.world_size, message.fits) == ("nlp", 8, True)
    assert "secret" not in message.script
    assert message.prediction.components == {"parameters": GIB, "context": 859832320}
    assert message.prediction.assumptions["torch"] == "2.14.1"


def test_one_without_a_verdict_is_no_prediction(script: Script) -> None:
    assert message_of(result("failed"), script) is None


def test_the_server_stores_it(
    script: Script, live_server: LiveServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert store(result(), script) is None, "no server is configured"
    monkeypatch.setenv("MEMAGENT_SERVER", live_server.url)
    sentence = store(result(), script)
    assert sentence is not None
    assert sentence.startswith(f"stored on {live_server.url}")
    with closing(ApiClient(live_server.url)) as client:
        (row,) = client.request("/api/v1/rehearsals").fields()["rehearsals"]
    assert (row["gpu"], row["project"]) == ("NVIDIA A100-SXM4-40GB", "nlp")
    assert row["prediction"]["peak_allocated_bytes"] == 2 * GIB


def test_a_server_that_is_away_costs_a_sentence(
    script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MEMAGENT_SERVER", "http://127.0.0.1:9")
    sentence = store(result(), script)
    assert sentence is not None
    assert sentence.startswith("the rehearsal is not stored: http://127.0.0.1:9 cannot be reached")
