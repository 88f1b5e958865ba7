"""When a rehearsed script is ended: by its processor time, not by that of a busy machine."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from memagent.rehearsal.reaper import temporary_folder
from memagent.rehearsal.sandbox import Sandbox
from memagent.rehearsal.script import _wait, is_stuck, processor_s

PATIENCE_S = 600.0


@pytest.mark.parametrize(
    ("wall_s", "computed_s", "stuck"),
    [
        (601, 601, True),
        (3000, 599, False),  # a fifth of a processor
        (3601, 0, True),  # a deadlock
        (599, 4000, False),  # many threads
    ],
)
def test_a_script_is_stuck_by_what_it_computed(
    wall_s: float, computed_s: float, stuck: bool
) -> None:
    assert is_stuck(wall_s, computed_s, PATIENCE_S) is stuck


def test_processor_time_includes_descendants_and_ended_ones() -> None:
    burn = "import time\nwhile time.process_time() < 0.3: pass\n"
    parent = (
        "import subprocess, sys\n"
        f"subprocess.run([sys.executable, '-c', {burn!r}])\n"
        f"other = subprocess.Popen([sys.executable, '-c', {burn + 'input()'!r}],"
        " stdin=subprocess.PIPE)\n"
        "print('ready', flush=True)\ninput()\nother.communicate(b'\\n')\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", parent], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    while processor_s(process.pid) < 0.5:  # both: each is counted in whole hundredths, cut off
        os.sched_yield()
    process.communicate(b"\n")
    assert processor_s(process.pid) == 0.0


def test_a_script_that_waits_forever_is_ended(tmp_path: Path) -> None:
    (project := tmp_path / "project").mkdir()
    with temporary_folder() as scratch:
        sandbox = Sandbox.of(project, scratch)
        process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
        assert _wait(process, sandbox, 0.05, lambda _state: None) == "stuck"
        process.communicate(b"\n")
