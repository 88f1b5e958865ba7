"""Exports share a process with the batches of agents: few at a time, and each gives way."""

from __future__ import annotations

import pytest

from memagent_server.web.downloads import MAX_DOWNLOADS, RETRY_AFTER_S

EXPORT = "/api/v1/runs/r/export"


@pytest.fixture
def run_client(client):
    assert client.post("/api/v1/runs", json={"run_id": "r"}).status_code == 201
    batch = {"seq": 0, "chunks": [{"stream": "host", "columns": {"step": [0], "time_s": [1.5]}}]}
    assert client.post("/api/v1/runs/r/batches", json=batch).status_code == 200
    return client


def test_more_exports_than_places_are_asked_to_come_back(run_client):
    taken = [run_client.get(EXPORT, buffered=False) for _ in range(MAX_DOWNLOADS)]
    assert [response.status_code for response in taken] == [200] * MAX_DOWNLOADS
    refused = run_client.get(EXPORT)
    assert refused.status_code == 503 and refused.headers["Retry-After"] == str(RETRY_AFTER_S)
    assert "exports are being downloaded" in refused.get_json(force=True)["detail"]
    assert run_client.get("/api/v1/runs").status_code == 200
    taken[0].close()
    again = run_client.get(EXPORT, buffered=False)
    assert again.data.decode().splitlines()[1:] == ["0,host,0,0,1.5"]
    again.close()


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_an_export_that_ends_leaves_its_place(run_client, method):
    for _ in range(2 * MAX_DOWNLOADS):
        response = run_client.open(EXPORT, method=method)
        assert response.status_code == 200
        response.close()
    missing = [run_client.get(f"{EXPORT}?format=none") for _ in range(2 * MAX_DOWNLOADS)]
    assert {response.status_code for response in missing} == {422}
    assert run_client.get(EXPORT).status_code == 200
