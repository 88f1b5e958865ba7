"""What is left of a rehearsal's processes and its folder when the rehearsing process has died."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from memagent.rehearsal import reaper
from tests.waiting import wait_until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="a rehearsal needs Linux")
REHEARSING = """
import os, signal, subprocess, sys, time
from memagent.rehearsal.reaper import temporary_folder

signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in a shell's background
script = "import subprocess, sys, time; p = subprocess.Popen(['sleep', '600']); print(p.pid, flush=True); p.wait()"
with temporary_folder() as scratch:
    print(scratch.folder, flush=True)
    environment = {"PLACE": f"{scratch.folder}/copy"} if sys.argv[1] == "named" else {}
    options = {"cwd": scratch.folder, "start_new_session": True} if sys.argv[1] == "there" else {}
    process = subprocess.Popen([sys.executable, "-c", script], env=environment, **options)
    if sys.argv[1] == "told":
        scratch.add_process(process.pid)
    process.wait()
"""
STUBBORN = (
    "import signal, time; signal.signal(15, signal.SIG_IGN); print(flush=True); time.sleep(600)"
)
IMPATIENT = "import sys; from memagent.rehearsal import reaper; reaper._END_S = 0.1; reaper.main(sys.argv[1])"


def start(code: str, *words: str, **options: Any) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code, *words],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, **options,
    )  # fmt: skip


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_nothing_is_left_of_a_process_that_is_ended(number: int) -> None:
    with start(REHEARSING, "named") as process:
        folder = Path(process.stdout.readline().strip())
        grandchild = process.stdout.readline().strip()
        assert folder.is_dir() and reaper.start_of(grandchild)
        process.send_signal(number)
        assert process.stdout.read() == ""  # all that held it have ended
    wait_until(lambda: not folder.exists(), "the removal of the folder")


def test_a_daemon_with_an_empty_environment_is_ended_by_its_working_folder() -> None:
    with start(REHEARSING, "there") as process:
        folder = Path(process.stdout.readline().strip())
        process.stdout.readline()
        process.kill()
        assert process.stdout.read() == ""  # the daemon has ended, too
    wait_until(lambda: not folder.exists(), "the removal of the folder")


def test_a_process_that_hides_its_environment_is_ended() -> None:
    with start(REHEARSING, "told") as process:
        folder = Path(process.stdout.readline().strip())
        grandchild = int(process.stdout.readline())
        process.kill()
        wait_until(lambda: not folder.exists(), "the removal of the folder")
        os.kill(grandchild, signal.SIGKILL)  # nothing tells whose it is
        assert process.stdout.read() == ""


def test_what_ignores_the_signal_is_killed(tmp_path: Path) -> None:
    folder = tmp_path / "scratch"
    folder.mkdir()
    with start(STUBBORN, env={"PLACE": str(folder)}) as process:
        process.stdout.readline()
        subprocess.run([sys.executable, "-c", IMPATIENT, folder], input=b"", check=True)
        assert process.wait() == -signal.SIGKILL
    assert not folder.exists()


def test_a_number_that_came_again_is_another_process(tmp_path: Path) -> None:
    number, start = reaper.start_of(str(os.getpid())).split()
    assert reaper.processes_of(str(tmp_path / "scratch"), {f"{number} {start}"}) == {os.getpid()}
    assert reaper.processes_of(str(tmp_path / "scratch"), {f"{number} {start}0"}) == set()
