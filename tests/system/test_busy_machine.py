"""Trainings and their server on a machine that is four times overcommitted: all samples arrive, and nobody is told of a run that is well."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from sqlalchemy import select

from memagent_server.store.engine import Database
from memagent_server.store.models import AlertRow, NotificationRow, RunRow, StreamRow
from memagent_server.store.samples import read_samples

RUNS, STEPS, LONGEST_S = 4, 200, 280.0
TRAINING = f"""
import torch, memagent
model = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 256))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
run = memagent.attach(model, optimizer)
for _ in range({STEPS}):
    model(torch.randn(500, 256)).square().mean().backward()
    optimizer.step(); optimizer.zero_grad()
print(run.id)
"""
LOOPS_A_CORE = 4
BUSY = "while True: sum(range(100_000))"


@pytest.mark.long
def test_no_sample_is_lost_and_nobody_is_told(live_server, tmp_path):
    busy = [
        subprocess.Popen([sys.executable, "-c", BUSY])
        for _ in range(LOOPS_A_CORE * (os.cpu_count() or 1))
    ]
    environ = {
        **os.environ,
        "MEMAGENT_SERVER": live_server.url,
        "XDG_STATE_HOME": str(tmp_path),
        "OMP_NUM_THREADS": "1",
        "PYTHONDONTWRITEBYTECODE": "",
    }
    try:
        trainings = [
            subprocess.Popen(
                [sys.executable, "-c", TRAINING], env=environ, stdout=subprocess.PIPE, text=True
            )
            for _ in range(RUNS)
        ]
        run_ids = [training.communicate(timeout=LONGEST_S)[0].strip() for training in trainings]
    finally:
        for loop in busy:
            loop.kill()
            loop.wait()
    with Database(live_server.database_url).read() as session:
        assert session.scalars(select(RunRow.status)).all() == ["completed"] * RUNS
        for run_id in run_ids:
            assert host_steps(session, run_id) == [*range(STEPS + 1)]  # the last is of its end
        assert session.scalars(select(NotificationRow.id)).all() == []
        assert session.scalars(select(AlertRow.rule)).all() == []


def host_steps(session, run_id):
    (stream,) = session.scalars(
        select(StreamRow.id).where(StreamRow.run_id == run_id, StreamRow.device == "host")
    )
    return [step for _, columns in read_samples(session, stream) for step in columns["step"]]
