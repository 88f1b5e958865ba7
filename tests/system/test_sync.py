"""Delivery after an outage or a kill: real trainings, a real server and `memagent sync`.

1. A killed run's file is uploaded: each of its steps is stored once.
2. A server that returns during the run gets everything from the run.
3. `memagent sync` may be killed, repeated and run concurrently.
4. Only the training process writes to its file or locks it, and no file contains the token.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from sqlalchemy import select

from memagent.delivery.envelope import seal
from memagent.delivery.run_file import RunFile, read_frames
from memagent.wire.codec import decode
from memagent.wire.columns import pack, unpack
from memagent.wire.messages import Batch, Chunk, Finish, RunStart
from memagent_server.store.engine import Database
from memagent_server.store.models import RunRow, StreamRow
from memagent_server.store.samples import read_samples
from tests.python_fork import ForkedProcess

AWAY = "http://127.0.0.1:9"
"""The port `discard`: nobody listens there."""
TRAINING = """
import os, signal, sys, time
import torch, memagent
from memagent.delivery import collector
model = torch.nn.Linear(16, 16)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def step():
    model(torch.randn(4, 16)).sum().backward(); optimizer.step(); optimizer.zero_grad()
"""
LATE_BATCHES = """
collector.BATCH_EVERY_S = 3600.0  # rows become a batch by the 500, and are drafts before
run = memagent.attach(model, optimizer)
for _ in range(600): step()
while run._pipeline.events._seq == 0: time.sleep(0.01)
for _ in range(100): step()
print("stepped", flush=True)
time.sleep(3600)
"""


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "runs"


@pytest.fixture
def train(fork_server, folder):
    """Start a training process: train(code, **settings)."""
    processes = []

    def start(code: str, **settings: str) -> ForkedProcess:
        environ = {
            name: value for name, value in os.environ.items() if not name.startswith("MEMAGENT_")
        }
        environ |= {"MEMAGENT_DIR": str(folder), "MEMAGENT_RUN_ID": "r", **settings}
        process = fork_server.start("-c", TRAINING + textwrap.dedent(code), env=environ)
        processes.append(process)
        return process

    yield start
    for process in processes:
        process.kill()
        process.communicate()


@pytest.fixture
def sync(folder):
    """Run `memagent sync --json`, and return its exit status and files."""

    def run(server, *arguments: str, **settings: str):
        done = subprocess.run(
            sync_command(server.url, *arguments),
            env=sync_environ(folder, **settings),
            capture_output=True,
            text=True,
        )
        return done.returncode, json.loads(done.stdout)["files"]

    return run


def sync_command(url, *arguments):
    return [sys.executable, "-m", "memagent", "sync", "--json", "--server", url, *arguments]


def sync_environ(folder, **settings):
    environ = {
        name: value for name, value in os.environ.items() if not name.startswith("MEMAGENT_")
    }
    return {**environ, "MEMAGENT_DIR": str(folder), **settings}


def steps_on(server, *, rank=0):
    """Steps of the run's host stream, as they are stored."""
    database = Database(server.database_url)
    try:
        with database.read() as session:
            streams = session.scalars(
                select(StreamRow).where(StreamRow.device == "host", StreamRow.rank == rank)
            ).all()
            return [
                step
                for stream in streams
                for _, columns in read_samples(session, stream.id)
                for step in columns["step"]
            ]
    finally:
        database.close()


def status_on(server):
    database = Database(server.database_url)
    try:
        with database.read() as session:
            return session.get_one(RunRow, "r").status
    finally:
        database.close()


def steps_in(folder: Path):
    """Steps of the host stream in the files of the folder."""
    frames = [frame for path in folder.glob("*.memagent") for frame in read_frames(path)]
    batches = [decode(body, Batch) for kind, body in frames if kind == "batch"]
    chunks = [chunk for batch in batches for chunk in batch.chunks if chunk.stream == "host"]
    return [step for chunk in chunks for step in unpack(chunk.packed)["step"]]


def wait_for_line(process, text):
    for line in process.stdout:
        if text in line:
            return line
    raise AssertionError(f"it ended with {process.wait()} and never said {text!r}")


def wait_for(condition, timeout_s=60.0):
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


@pytest.mark.parametrize("is_away", [False, True], ids=["server up", "server away"])
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM], ids=["SIGKILL", "SIGTERM"])
def test_files_of_a_killed_run_are_uploaded(live_server, train, sync, folder, is_away, how):
    process = train(LATE_BATCHES, MEMAGENT_SERVER=AWAY if is_away else live_server.url)
    wait_for_line(process, "stepped")
    wait_for(lambda: steps_in(folder)[-1:] == [700])
    wait_for(lambda: is_away or len(steps_on(live_server)) >= 500)
    process.send_signal(how)
    assert process.wait() == -how
    assert steps_on(live_server)[-1:] != [700]
    status, (file,) = sync(live_server)
    assert (status, file["outcome"], file["status"]) == (0, "uploaded", None)
    assert steps_on(live_server) == list(range(701)) and status_on(live_server) == "lost_contact"
    assert list(folder.iterdir()) == [] and sync(live_server) == (0, [])


def test_a_run_delivers_everything_to_a_server_that_returns(start_server, train, folder):
    server = start_server()
    port = server.url.rpartition(":")[2]
    process = train(
        """
        from memagent.delivery import sender
        sender.MAX_DELAY_S = 0.2
        run = memagent.attach(model, optimizer)
        for number in range(3):
            for _ in range(200): step(); time.sleep(0.002)
            print("stepped", flush=True)
            sys.stdin.readline()
        run.finish()
        """,
        MEMAGENT_SERVER=server.url,
    )
    wait_for_line(process, "stepped")
    wait_for(lambda: len(steps_on(server)) > 0)
    server.kill()
    print(file=process.stdin, flush=True)
    wait_for_line(process, "stepped")
    wait_for(lambda: steps_in(folder)[-1:] == [400])
    server = start_server(listen=f"127.0.0.1:{port}")
    wait_for(lambda: len(steps_on(server)) >= 401)
    print(file=process.stdin, flush=True)
    wait_for_line(process, "stepped")
    print(file=process.stdin, flush=True)
    assert process.wait() == 0
    assert steps_on(server) == list(range(601)) and status_on(server) == "completed"
    assert list(folder.iterdir()) == []


def test_ranks_that_ended_without_a_server_are_uploaded_together(live_server, train, sync, folder):
    code = "run = memagent.attach(model, optimizer)\nfor _ in range(5): step()\nrun.finish()"
    ranks = [train(code, RANK=str(rank), WORLD_SIZE="2") for rank in range(2)]
    assert [process.wait() for process in ranks] == [0, 0]
    status, files = sync(live_server, "--keep")
    assert status == 0 and sorted((file["rank"], file["status"]) for file in files) == [
        (0, "completed"),
        (1, "completed"),
    ]
    assert [steps_on(live_server, rank=rank) for rank in range(2)] == [list(range(6))] * 2
    assert status_on(live_server) == "completed"
    assert {path.suffix for path in folder.iterdir()} == {".synced"} and sync(live_server) == (
        0,
        [],
    )


def test_an_interrupted_and_repeated_sync_loses_and_duplicates_nothing(live_server, folder, sync):
    batches = 1500
    write_run(folder, batches)
    for kill_at in (100, 500, 900):
        process = subprocess.Popen(
            sync_command(live_server.url), env=sync_environ(folder), stdout=subprocess.DEVNULL
        )
        wait_for(lambda least=kill_at: stored_batches(live_server) >= least)
        process.kill()
        assert process.wait() == -signal.SIGKILL and len(list(folder.iterdir())) == 1
    commands = [
        subprocess.Popen(
            sync_command(live_server.url),
            env=sync_environ(folder),
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    outcomes = [json.loads(process.communicate()[0])["files"] for process in commands]
    assert {file["outcome"] for files in outcomes for file in files} <= {"uploaded", "in_use"}
    assert steps_on(live_server) == list(range(2 * batches)) and status_on(live_server) == "failed"
    assert sync(live_server) == (0, [])


def write_run(folder, batches):
    file = RunFile(folder / "r-rank0-1.memagent", seal("r", RunStart(run_id="r", attempt=1)))
    for seq in range(batches):
        chunk = Chunk(stream="host", packed=pack({"step": [2 * seq, 2 * seq + 1]}))
        file.append(seal("r", Batch(attempt=1, seq=seq, chunks=[chunk])))
    file.append(seal("r", Finish(status="failed", attempt=1)))
    file.close()


def stored_batches(server):
    return len(steps_on(server)) // 2


def test_the_file_of_a_running_process_is_skipped(live_server, train, sync, folder):
    process = train(LATE_BATCHES, MEMAGENT_SERVER=AWAY)
    wait_for_line(process, "stepped")
    wait_for(lambda: len(list(folder.glob("*.memagent"))) == 1)
    status, (file,) = sync(live_server)
    assert (status, file["outcome"]) == (0, "in_use") and steps_on(live_server) == []
    process.kill()
    process.wait()
    assert sync(live_server)[1][0]["outcome"] == "uploaded"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_child_that_outlives_its_parent_neither_writes_nor_holds_the_lock(
    live_server, train, sync, folder
):
    process = train(
        """
        run = memagent.attach(model, optimizer)
        for _ in range(3): step()
        if os.fork() == 0:
            for _ in range(100): step()
            run.log({"child": 1.0}); run.finish()
            print("child", os.getpid(), flush=True)
            time.sleep(3600)
        time.sleep(3600)
        """,
        MEMAGENT_SERVER=AWAY,
    )
    child = int(wait_for_line(process, "child ").split()[1])
    try:
        wait_for(lambda: steps_in(folder) == [0, 1, 2, 3])
        process.kill()
        process.wait()
        assert sync(live_server)[1][0]["outcome"] == "uploaded"
        assert steps_on(live_server) == [0, 1, 2, 3]
    finally:
        os.kill(child, signal.SIGKILL)


def test_the_token_authenticates_and_is_in_no_file(start_server, train, sync, folder):
    token, wrong = "mat_right-token-0123456789", "mat_wrong-token-0123456789"
    server = start_server(environ={"MEMAGENT_ADMIN_TOKEN": token})
    code = "run = memagent.attach(model, optimizer)\nfor _ in range(5): step()\nprint(repr(run), repr(run.settings), vars(run))"
    output, _ = train(code, MEMAGENT_SERVER=server.url, MEMAGENT_TOKEN=wrong).communicate()
    assert "401" in output and "6 samples wait in" in output and "<memagent.Run r" in output
    status, (refused,) = sync(server, MEMAGENT_TOKEN=wrong)
    assert status == 1 and refused["outcome"] == "waiting"
    content = b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())
    status, (file,) = sync(server, MEMAGENT_TOKEN=token)
    assert (status, file["outcome"], file["samples"]) == (0, "uploaded", 6) and steps_on(
        server
    ) == list(range(6))
    for text in (output, content.decode("latin-1"), json.dumps([refused, file]), server.errors):
        assert wrong not in text and token not in text


@pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="uses RLIMIT_FSIZE as a disk that is full"
)
def test_a_full_disk_is_reported_once_and_the_server_still_gets_everything(
    live_server, train, folder
):
    output, _ = train(
        """
        import resource
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        collector.BATCH_ROWS = 10
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
        run = memagent.attach(model, optimizer)
        for _ in range(100): step(); time.sleep(0.01)
        run.finish()
        print(dict(run.drops), dict(run.guard.errors))
        """,
        MEMAGENT_SERVER=live_server.url,
    ).communicate()
    assert "{} {}" in output and output.count("cannot write") == 1
    assert steps_on(live_server) == list(range(101)) and list(folder.iterdir()) == []


def test_a_missing_server_is_reported_in_one_line(folder):
    command = [sys.executable, "-m", "memagent", "sync"]
    done = subprocess.run(command, env=sync_environ(folder), capture_output=True, text=True)
    assert done.returncode == 2 and done.stdout == ""
    assert (
        done.stderr
        == "memagent: No server to upload to: give --server URL or set MEMAGENT_SERVER.\n"
    )


def test_a_path_that_is_missing_is_named(folder):
    command = [sys.executable, "-m", "memagent", "sync", "--dry-run", "nowhere"]
    done = subprocess.run(command, env=sync_environ(folder), capture_output=True, text=True)
    assert done.returncode == 2 and done.stderr == "memagent: nowhere does not exist\n"


def test_the_output_says_what_was_uploaded(live_server, folder):
    write_run(folder, 3)
    (folder / "notes.memagent").write_text("mine")
    outputs = []
    for arguments in (["--dry-run"], ["--server", live_server.url], ["--server", live_server.url]):
        command = [sys.executable, "-m", "memagent", "sync", *arguments]
        done = subprocess.run(command, env=sync_environ(folder), capture_output=True, text=True)
        outputs.append(
            (
                done.returncode,
                *(item.replace(str(folder), "RUNS") for item in (done.stdout, done.stderr)),
            )
        )
        if len(outputs) == 2:
            (folder / "notes.memagent").unlink()
    bad = "RUNS/notes.memagent: cannot be read; kept as RUNS/notes.memagent\n"
    why = "memagent: RUNS/notes.memagent: RUNS/notes.memagent isn't a run file of memagent\n"
    assert outputs == [
        (1, bad + "run r, rank 0: 6 samples would be uploaded (failed)\n", why),
        (1, bad + "run r, rank 0: 6 samples uploaded (failed)\n", why),
        (0, "", "memagent: nothing to upload in RUNS\n"),
    ]


def test_an_unreachable_server_is_an_error_that_counts_what_is_left(folder):
    write_run(folder, 3)
    shutil.copy(folder / "r-rank0-1.memagent", folder / "s-rank0-1.memagent")
    command = [sys.executable, "-m", "memagent", "sync", "--server", "http://127.0.0.1:1"]
    done = subprocess.run(command, env=sync_environ(folder), capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stdout.count("not uploaded yet, run this again") == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("memagent: run r, rank 0: ") and "http://127.0.0.1:1" in line
