"""A start is answered with the last run of the same program."""

from __future__ import annotations

import pytest

from memagent.forecast.predecessor import MAX_POINTS, MIN_STEPS
from memagent.units import GIB
from memagent_server.http import credentials
from memagent_server.store.predecessors import MAX_CANDIDATES
from memagent_server.store.tokens import create_token

DEVICE = {"id": "GPU-1", "kind": "cuda", "name": "NVIDIA L4", "limit_bytes": 24 * GIB}
ENVIRONMENT = {"command": "python train.py --lr 1", "directory": "/gpt", "git_commit": "c0ffee"}


@pytest.fixture
def start(client):
    """Start a run; return the predecessor that the server names."""

    def post(run_id: str, **fields):
        body = {"run_id": run_id, "environment": ENVIRONMENT, "devices": [DEVICE], **fields}
        response = client.post("/api/v1/runs", json=body)
        assert response.status_code in (200, 201)
        return response.get_json()["predecessor"]

    return post


@pytest.fixture
def play(client, start):
    """Start a run, send its samples, and end it."""

    def post(run_id: str, status: str | None = "oom", steps: int = 300, rank: int = 0, **fields):
        start(run_id, rank=rank, **fields)
        columns = {
            "step": list(range(steps)),
            "allocated_bytes": [GIB + step + 1000 * rank for step in range(steps)],
            "peak_allocated_bytes": [2 * GIB + step for step in range(steps)],
        }
        batch = {"rank": rank, "seq": 0, "chunks": [{"stream": "GPU-1", "columns": columns}]}
        path = f"/api/v1/runs/{run_id}"
        assert client.post(f"{path}/batches", json=batch).status_code == 200
        if status:
            body = {"status": status, "rank": rank, "step": steps - 1}
            assert client.post(f"{path}/finish", json=body).status_code == 200

    return post


def test_a_rerun_gets_the_end_and_the_curve_of_the_last_run(start, play):
    play("before")
    predecessor = start("now")
    assert predecessor["run_id"] == "before" and predecessor["status"] == "oom"
    assert (predecessor["last_step"], predecessor["limit_bytes"]) == (299, 24 * GIB)
    assert predecessor["is_same_commit"] is True
    steps = predecessor["steps"]
    assert 10 < len(steps) <= MAX_POINTS and steps[-1] == 299
    assert predecessor["floor_bytes"] == [GIB + step for step in steps]
    assert predecessor["peak_bytes"] == [2 * GIB + step for step in steps]
    assert start("now") == predecessor, "a start that's sent again has the same answer"


def test_the_newest_that_has_ended_counts(start, play):
    play("first", "completed")
    play("second", "stopped")
    play("short", "oom", MIN_STEPS // 2)
    play("running", None)
    assert start("now")["run_id"] == "second"


def test_steps_that_go_back_make_no_curve_that_does(start, play, client):
    play("before", status=None)
    for seq, steps in ((1, range(100)), (2, [7] * 50), (3, range(400, 350, -1))):
        columns = {"step": list(steps), "allocated_bytes": [GIB] * len(steps)}
        batch = {"rank": 0, "seq": seq, "chunks": [{"stream": "GPU-1", "columns": columns}]}
        client.post("/api/v1/runs/before/batches", json=batch)
    client.post("/api/v1/runs/before/finish", json={"status": "oom", "rank": 0, "step": 299})
    steps = start("now")["steps"]
    assert steps == sorted(set(steps)) and len(steps) > 1


@pytest.mark.parametrize(
    "fields",
    [
        {"project": "other"},
        {"world_size": 2},
        {"config": {"layers": 2}},
        {"environment": {**ENVIRONMENT, "command": "python other.py"}},
        {"environment": {}},
    ],
)
def test_another_program_or_project_has_none(start, play, fields):
    play("before")
    assert start("now", **fields) is None


def test_another_commit_is_the_same_program(start, play):
    play("before")
    assert start("now", environment={**ENVIRONMENT, "git_commit": "b"})["is_same_commit"] is False
    unknown = {name: text for name, text in ENVIRONMENT.items() if name != "git_commit"}
    assert start("later", environment=unknown)["is_same_commit"] is None


def test_a_rank_gets_the_curve_of_the_same_rank(start, play):
    for rank in (0, 1):
        play("before", rank=rank, world_size=2)
    floors = [start("now", rank=rank, world_size=2)["floor_bytes"][0] for rank in (0, 1)]
    assert floors[1] - floors[0] == 1000
    assert start("now", rank=2, world_size=2) is None


def test_a_run_without_samples_or_limit_is_passed_over(start, play, client):
    play("before", "completed")
    play("unlimited", devices=[{**DEVICE, "limit_bytes": None}])
    for number in range(MAX_CANDIDATES - 2):
        start(f"empty-{number}")
        body = {"status": "completed", "step": 300}
        assert client.post(f"/api/v1/runs/empty-{number}/finish", json=body).status_code == 200
    assert start("now")["run_id"] == "before"


def test_a_token_of_another_project_learns_nothing(app, client, play):
    play("before", project="secret")
    context, secret = app.extensions["memagent"], credentials.new_token()
    with context.database.write() as session:
        create_token(
            session,
            name="ci",
            scope="ingest",
            token_hash=credentials.token_hash(context.settings, secret),
            now=1.0,
            projects=("open",),
        )
    headers = {"Authorization": f"Bearer {secret}"}
    body = {"run_id": "now", "project": "open", "environment": ENVIRONMENT, "devices": [DEVICE]}
    response = client.post("/api/v1/runs", json=body, headers=headers)
    assert response.get_json()["predecessor"] is None
    body = {**body, "run_id": "then", "project": "secret"}
    assert client.post("/api/v1/runs", json=body, headers=headers).status_code == 403
