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
import uuid
from contextlib import contextmanager
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
from tests.live_server import LiveServer
from tests.python_fork import ForkedProcess
from tests.waiting import wait_until

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
collector.BATCH_EVERY_S = 3600.0  # rows become a batch by the 50, and are drafts before
collector.BATCH_ROWS = 50
run = memagent.attach(model, optimizer)
for _ in range(60): step()
while run._pipeline.events._seq == 0: time.sleep(0.01)
for _ in range(10): step()
print("stepped", flush=True)
time.sleep(3600)
"""


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "runs"


@pytest.fixture(scope="module")
def shared_server(tmp_path_factory):
    """A server and its worker for the tests of this module, each of which has its own run."""
    server = LiveServer.start(tmp_path_factory.mktemp("sync"), "127.0.0.1:0", (), {})
    yield server
    server.kill()


@pytest.fixture
def run_id():
    return f"r{uuid.uuid4().hex}"


@pytest.fixture
def train(fork_server, folder, run_id):
    """Start a training process: train(code, **settings)."""
    processes = []

    def start(code: str, **settings: str) -> ForkedProcess:
        environ = {
            name: value for name, value in os.environ.items() if not name.startswith("MEMAGENT_")
        }
        environ |= {"MEMAGENT_DIR": str(folder), "MEMAGENT_RUN_ID": run_id, **settings}
        process = fork_server.start("-c", TRAINING + textwrap.dedent(code), env=environ)
        processes.append(process)
        return process

    yield start
    for process in processes:
        process.kill()
        process.communicate()


@pytest.fixture
def memagent_sync(memagent_fork, folder):
    """Run `memagent sync` with arguments: memagent_sync(*arguments, **settings)."""

    def run(*arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
        environ = sync_environ(folder, **settings)
        return memagent_fork.run("-m", "memagent", "sync", *arguments, env=environ)

    return run


@pytest.fixture
def sync(memagent_sync):
    """Run `memagent sync --json`, and return its exit status and files."""

    def run(server, *arguments: str, **settings: str):
        done = memagent_sync("--json", "--server", server.url, *arguments, **settings)
        return done.returncode, json.loads(done.stdout)["files"]

    return run


@pytest.fixture
def start_sync(memagent_fork, folder):
    """Start `memagent sync --json`, and return its process."""
    command = ("-m", "memagent", "sync", "--json", "--server")
    return lambda server: memagent_fork.start(*command, server.url, env=sync_environ(folder))


def sync_environ(folder, **settings):
    environ = {
        name: value for name, value in os.environ.items() if not name.startswith("MEMAGENT_")
    }
    return {**environ, "MEMAGENT_DIR": str(folder), **settings}


@pytest.fixture
def steps_on(run_id):
    """Steps of the run's host stream, as they are stored: steps_on(server, rank=0)."""

    def stored(server, *, rank=0):
        own = (StreamRow.run_id == run_id, StreamRow.device == "host", StreamRow.rank == rank)
        with reading(server) as session:
            return [
                step
                for stream in session.scalars(select(StreamRow).where(*own)).all()
                for _, columns in read_samples(session, stream.id)
                for step in columns["step"]
            ]

    return stored


@pytest.fixture
def status_on(run_id):
    def status(server):
        with reading(server) as session:
            return session.get_one(RunRow, run_id).status

    return status


@contextmanager
def reading(server):
    database = Database(server.database_url)
    try:
        with database.read() as session:
            yield session
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


@pytest.mark.parametrize(
    ("how", "is_away", "end"),
    [
        pytest.param(signal.SIGKILL, False, None, id="SIGKILL, server up"),
        pytest.param(signal.SIGKILL, True, None, id="SIGKILL, server away"),
        pytest.param(signal.SIGTERM, True, "stopped", id="SIGTERM, server away"),
    ],
)
def test_files_of_a_killed_run_are_uploaded(
    shared_server, train, sync, steps_on, status_on, folder, how, is_away, end
):
    process = train(LATE_BATCHES, MEMAGENT_SERVER=AWAY if is_away else shared_server.url)
    wait_for_line(process, "stepped")
    wait_until(lambda: steps_in(folder)[-1:] == [70])
    wait_until(lambda: is_away or len(steps_on(shared_server)) >= 50)
    process.send_signal(how)
    assert process.wait() == -how
    assert steps_on(shared_server)[-1:] != [70]
    status, (file,) = sync(shared_server)
    assert (status, file["outcome"], file["status"]) == (0, "uploaded", end)
    assert steps_on(shared_server) == list(range(71))
    assert status_on(shared_server) == (end or "lost_contact")
    assert list(folder.iterdir()) == [] and sync(shared_server) == (0, [])


@pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="the kernel keeps RLIMIT_DATA only on Linux"
)
def test_a_script_that_leaves_no_memory_for_a_while_loses_nothing(
    shared_server, train, steps_on, status_on
):
    process = train(
        """
        import resource
        run = memagent.attach(model, optimizer, predict=False)
        for _ in range(50): step()
        sys.stdin.readline()
        hog, limit = [None] * 2_000_000, resource.getrlimit(resource.RLIMIT_DATA)
        until = time.monotonic() + 2
        for _ in range(50): step()
        resource.setrlimit(resource.RLIMIT_DATA, (1, limit[1]))
        at = 0
        for size in (4096, 1024, 512, 256, 128, 64, 32, 16, 1):
            try:
                while True:
                    hog[at] = bytes(size)
                    at += 1
            except MemoryError:
                pass
        while time.monotonic() < until:
            pass
        hog.clear()
        resource.setrlimit(resource.RLIMIT_DATA, limit)
        run.finish()
        """,
        MEMAGENT_SERVER=shared_server.url,
    )
    wait_until(lambda: len(steps_on(shared_server)) > 0)
    print(file=process.stdin, flush=True)
    output, _ = process.communicate()
    assert "memagent failed" not in output and "MemoryError" not in output
    assert status_on(shared_server) == "completed"
    assert sorted(steps_on(shared_server)) == list(range(101))


def test_a_run_delivers_everything_to_a_server_that_returns(
    start_server, train, steps_on, status_on, folder
):
    server = start_server("--role", "web")
    port = server.url.rpartition(":")[2]
    process = train(
        """
        from memagent.delivery import sender
        sender.MAX_DELAY_S = 0.2
        run = memagent.attach(model, optimizer)
        for number in range(3):
            for _ in range(50): step()
            print("stepped", flush=True)
            sys.stdin.readline()
        run.finish()
        """,
        MEMAGENT_SERVER=server.url,
    )
    wait_for_line(process, "stepped")
    wait_until(lambda: len(steps_on(server)) > 0)
    server.kill()
    print(file=process.stdin, flush=True)
    wait_for_line(process, "stepped")
    wait_until(lambda: steps_in(folder)[-1:] == [100])
    server = start_server("--role", "web", listen=f"127.0.0.1:{port}")
    wait_until(lambda: len(steps_on(server)) >= 101)
    print(file=process.stdin, flush=True)
    wait_for_line(process, "stepped")
    print(file=process.stdin, flush=True)
    assert process.wait() == 0
    assert steps_on(server) == list(range(151)) and status_on(server) == "completed"
    assert list(folder.iterdir()) == []


def test_ranks_that_ended_without_a_server_are_uploaded_together(
    shared_server, train, sync, steps_on, status_on, folder
):
    code = "run = memagent.attach(model, optimizer)\nfor _ in range(5): step()\nrun.finish()"
    ranks = [train(code, RANK=str(rank), WORLD_SIZE="2") for rank in range(2)]
    assert [process.wait() for process in ranks] == [0, 0]
    status, files = sync(shared_server, "--keep")
    assert status == 0 and sorted((file["rank"], file["status"]) for file in files) == [
        (0, "completed"),
        (1, "completed"),
    ]
    assert [steps_on(shared_server, rank=rank) for rank in range(2)] == [list(range(6))] * 2
    assert status_on(shared_server) == "completed"
    assert {path.suffix for path in folder.iterdir()} == {".synced"} and sync(shared_server) == (
        0,
        [],
    )


def test_an_interrupted_and_repeated_sync_loses_and_duplicates_nothing(
    shared_server, folder, sync, start_sync, steps_on, status_on, run_id
):
    batches = 600
    write_run(folder, run_id, batches)
    for kill_at in (50, 250):
        process = start_sync(shared_server)
        wait_until(lambda least=kill_at: len(steps_on(shared_server)) >= 2 * least)
        process.kill()
        assert process.communicate() is not None and process.returncode == -signal.SIGKILL
        assert len(list(folder.iterdir())) == 1
    commands = [start_sync(shared_server) for _ in range(2)]
    outcomes = [json.loads(process.communicate()[0])["files"] for process in commands]
    assert {file["outcome"] for files in outcomes for file in files} <= {"uploaded", "in_use"}
    assert steps_on(shared_server) == list(range(2 * batches))
    assert status_on(shared_server) == "failed"
    assert sync(shared_server) == (0, [])


def write_run(folder, run_id, batches):
    start = seal(run_id, RunStart(run_id=run_id, attempt=1))
    file = RunFile(folder / f"{run_id}-rank0-1.memagent", start)
    for seq in range(batches):
        chunk = Chunk(stream="host", packed=pack({"step": [2 * seq, 2 * seq + 1]}))
        file.append(seal(run_id, Batch(attempt=1, seq=seq, chunks=[chunk])))
    file.append(seal(run_id, Finish(status="failed", attempt=1)))
    file.close()


def test_the_file_of_a_running_process_is_skipped(shared_server, train, sync, steps_on, folder):
    process = train(LATE_BATCHES, MEMAGENT_SERVER=AWAY)
    wait_for_line(process, "stepped")
    wait_until(lambda: len(list(folder.glob("*.memagent"))) == 1)
    status, (file,) = sync(shared_server)
    assert (status, file["outcome"]) == (0, "in_use") and steps_on(shared_server) == []
    process.kill()
    process.wait()
    assert sync(shared_server)[1][0]["outcome"] == "uploaded"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_child_that_outlives_its_parent_neither_writes_nor_holds_the_lock(
    shared_server, train, sync, steps_on, folder
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
        wait_until(lambda: steps_in(folder) == [0, 1, 2, 3])
        process.kill()
        process.wait()
        assert sync(shared_server)[1][0]["outcome"] == "uploaded"
        assert steps_on(shared_server) == [0, 1, 2, 3]
    finally:
        os.kill(child, signal.SIGKILL)


def test_the_token_authenticates_and_is_in_no_file(
    start_server, train, sync, steps_on, run_id, folder
):
    token, wrong = "mat_right-token-0123456789", "mat_wrong-token-0123456789"
    server = start_server("--role", "web", environ={"MEMAGENT_ADMIN_TOKEN": token})
    code = "run = memagent.attach(model, optimizer)\nfor _ in range(5): step()\nprint(repr(run), repr(run.settings), vars(run))"
    output, _ = train(code, MEMAGENT_SERVER=server.url, MEMAGENT_TOKEN=wrong).communicate()
    assert "401" in output and "6 samples wait in" in output and f"<memagent.Run {run_id}" in output
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
    shared_server, train, steps_on, folder
):
    output, _ = train(
        """
        import resource
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        collector.BATCH_ROWS = 10
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
        run = memagent.attach(model, optimizer)
        for _ in range(100): step()
        run.finish()
        print(dict(run.drops), dict(run.guard.errors))
        """,
        MEMAGENT_SERVER=shared_server.url,
    ).communicate()
    assert "{} {}" in output and output.count("cannot write") == 1
    assert steps_on(shared_server) == list(range(101)) and list(folder.iterdir()) == []


def test_a_missing_server_is_reported_in_one_line(memagent_sync):
    done = memagent_sync()
    assert done.returncode == 2 and done.stdout == ""
    assert (
        done.stderr
        == "memagent: No server to upload to: give --server URL or set MEMAGENT_SERVER.\n"
    )


def test_a_path_that_is_missing_is_named(memagent_sync):
    done = memagent_sync("--dry-run", "nowhere")
    assert done.returncode == 2 and done.stderr == "memagent: nowhere does not exist\n"


def test_the_output_says_what_was_uploaded(shared_server, memagent_sync, folder):
    write_run(folder, "r", 3)
    (folder / "notes.memagent").write_text("mine")
    outputs = []
    for arguments in (
        ["--dry-run"],
        ["--server", shared_server.url],
        ["--server", shared_server.url],
    ):
        done = memagent_sync(*arguments)
        texts = (text.replace(str(folder), "RUNS") for text in (done.stdout, done.stderr))
        outputs.append((done.returncode, *texts))
        if len(outputs) == 2:
            (folder / "notes.memagent").unlink()
    bad = "RUNS/notes.memagent: cannot be read; kept as RUNS/notes.memagent\n"
    why = "memagent: RUNS/notes.memagent: RUNS/notes.memagent isn't a run file of memagent\n"
    assert outputs == [
        (1, bad + "run r, rank 0: 6 samples would be uploaded (failed)\n", why),
        (1, bad + "run r, rank 0: 6 samples uploaded (failed)\n", why),
        (0, "", "memagent: nothing to upload in RUNS\n"),
    ]


def test_an_unreachable_server_is_an_error_that_counts_what_is_left(memagent_sync, folder):
    write_run(folder, "r", 3)
    shutil.copy(folder / "r-rank0-1.memagent", folder / "s-rank0-1.memagent")
    done = memagent_sync("--server", "http://127.0.0.1:1")
    assert done.returncode == 1
    assert done.stdout.count("not uploaded yet, run this again") == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("memagent: run r, rank 0: ") and "http://127.0.0.1:1" in line
