"""If writing falls behind, batches get 503 with Retry-After; nothing is stored, and retries
succeed.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

from memagent_server.store.group_commit import GroupWriter

BATCHES = "/api/v1/runs/r/batches"


def test_a_batch_that_cannot_be_written_soon_is_refused(sqlite_app, sqlite_database):
    client = sqlite_app.test_client()
    client.post("/api/v1/runs", json={"run_id": "r"})
    sqlite_database._group_writer = writer = GroupWriter(sqlite_database._begin, max_wait_s=0.05)
    with ThreadPoolExecutor(1) as pool:
        with sqlite_database.write():  # holds the write lock
            first = pool.submit(sqlite_app.test_client().post, BATCHES, json=batch(0))
            until = time.monotonic() + 10
            while not writer._has_leader or writer._waiting:
                assert time.monotonic() < until
                time.sleep(0.001)
            refused = client.post(BATCHES, json=batch(1))
        assert first.result().status_code == 200
    assert (refused.status_code, refused.mimetype) == (503, "application/problem+json")
    assert int(refused.headers["Retry-After"]) >= 1
    assert client.get("/api/v1/runs/r").get_json()["streams"][0]["samples"] == 1
    again = client.post(BATCHES, json=batch(1))
    assert (again.status_code, again.get_json()["next_seq"]) == (200, 2)


def batch(seq):
    return {"seq": seq, "chunks": [{"stream": "host", "columns": {"step": [seq]}}]}
