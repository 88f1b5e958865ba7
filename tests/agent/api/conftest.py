"""The same runs in a server, in a database and in a folder of run files."""

from __future__ import annotations

import shutil

import pytest

from memagent.delivery.api_client import HttpTransport
from memagent.delivery.envelope import Envelope
from memagent.delivery.run_file import RunFile
from memagent.delivery.upload import find_files, upload
from memagent.wire.codec import encode
from memagent.wire.columns import pack
from memagent.wire.fields import scalar_kind_of
from memagent.wire.messages import (
    Batch,
    Chunk,
    Device,
    Event,
    Finish,
    PredictionMessage,
    RunStart,
    SnapshotMessage,
    Suspect,
)

GIB = 2**30
GPU = Device(id="GPU-1", kind="cuda", name="Test GPU", limit_bytes=8 * GIB, total_bytes=8 * GIB)
SUSPECT = Suspect(
    kind="list",
    holder="history: list of 412",
    file="/code/train.py",
    line=42,
    bytes_per_step=1e6,
    confidence=0.9,
    fix="Append loss.item().",
    source=["for batch in loader:", "    loss = model(batch).sum()", "    history.append(loss)"],
    source_first_line=40,
)


def record(folder, run_id, *, rows=1000, config=None, tags=(), died=False, ranks=1, name=None):
    """Write the run files of a run, as its agents would without a server."""
    for rank in range(ranks):
        start = RunStart(
            run_id=run_id,
            name=name or run_id,
            rank=rank,
            world_size=ranks,
            attempt=1,
            started_at=1000.0 + len(list(folder.glob("*"))),
            config=config or {},
            tags=list(tags),
            environment={"directory": "/code"},
            devices=[GPU],
        )
        path = folder / f"{run_id}-{rank}.memagent"
        file = RunFile(path, Envelope("start", run_id, encode(start)))
        for seq, first in enumerate(range(0, rows, 300)):
            steps = list(range(first, min(first + 300, rows)))
            columns = {
                "step": steps,
                "time_s": [2000.0 + step / 7 for step in steps],
                "step_s": [1 / 7] * len(steps),
                "allocated_bytes": [GIB + 1000 * step for step in steps],
                "peak_allocated_bytes": [2 * GIB + step for step in steps],
                "power_w": [None if step % 3 else step / 2 for step in steps],
                "segments": [None if step < 500 else step for step in steps],
            }
            loss = {
                "step": steps,
                "time_s": columns["time_s"],
                "loss": [1 / (s + 1) for s in steps],
            }
            chunks = [
                Chunk(stream=GPU.id, packed=pack(columns)),
                Chunk(stream="scalars", packed=pack(loss, kind_of=scalar_kind_of)),
            ]
            is_last = steps[-1] == rows - 1
            events = [oom_event(rows)] if died and is_last else []
            batch = Batch(rank=rank, attempt=1, seq=seq, chunks=chunks, events=events)
            file.append(Envelope("batch", run_id, encode(batch)))
        prediction = PredictionMessage(
            method="trace", rank=rank, device=GPU.id, peak_allocated_bytes=2 * GIB
        )
        file.append(Envelope("prediction", run_id, encode(prediction)))
        if died:
            snapshot = SnapshotMessage(
                rank=rank, attempt=1, device=GPU.id, step=400, method="census", suspects=[SUSPECT]
            )
            file.append(Envelope("snapshot", run_id, encode(snapshot)))
        finish = Finish(status="oom" if died else "completed", rank=rank, attempt=1, step=rows - 1)
        file.append(Envelope("finish", run_id, encode(finish)))
        file.close()


def oom_event(rows):
    forecast = {
        "cause": "leak",
        "step": 900,
        "first_step": 600,
        "growth_bytes_per_step": 1_000_000,
        "growing_since_step": 100,
        "grown_bytes": 800_000_000,
        "used_bytes": 7 * GIB,
        "limit_bytes": 8 * GIB,
    }
    data = {"phase": "forward", "asked_bytes": 2**28, "free_bytes": 2**20, "forecast": forecast}
    return Event(kind="oom", step=rows - 1, time_s=3000.0, data=data)


@pytest.fixture
def folder(tmp_path):
    """Return a folder with three runs; `death` has two ranks and ran out of memory."""
    folder = tmp_path / "files"
    folder.mkdir()
    record(folder, "first", config={"lr": 0.1}, tags=["x"])
    record(folder, "second", config={"lr": 1e-4, "optimizer": {"name": "adam"}}, tags=["x", "y"])
    record(folder, "death", config={"lr": 1e-4}, died=True, ranks=2)
    return folder


@pytest.fixture(params=["folder", "server", "database"])
def source(request, folder, tmp_path):
    """Return each kind of source of the same runs."""
    if request.param == "folder":
        return str(folder)
    server = request.getfixturevalue("start_server")()
    sync(folder, server.url, tmp_path)
    return server.url if request.param == "server" else server.database_url


def sync(folder, url, tmp_path):
    """Upload a copy of the files, as `memagent sync` does."""
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    transport = HttpTransport(url, replayed=True)
    for file in find_files([copy]):
        assert upload(file, transport).outcome == "uploaded", file.notes
    transport.close()
