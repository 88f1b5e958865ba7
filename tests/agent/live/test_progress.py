"""The progress line of long work, in a real terminal and without one."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import sys

import pytest

from memagent.live.progress import bar


@pytest.mark.parametrize(
    ("done", "total", "line"),
    [
        (0, 4, "[........................]   0%  runs"),
        (3, 4, "[##################......]  75%  runs"),
        (9, 4, "[########################] 100%  runs"),
        (0, 0, "[########################] 100%  runs"),
    ],
)
def test_it_draws_the_completed_share(done, total, line):
    assert bar(done, total, "runs") == line


def test_it_estimates_the_remaining_time():
    assert bar(1, 4, "runs", elapsed_s=30.0).endswith(
        "25%  runs, 90 s left".replace("90 s", "2 min")
    )
    assert bar(1, 4, "runs", elapsed_s=1.0).endswith("runs")


def on_terminal(*arguments: str) -> tuple[str, str]:
    """What `memagent` wrote to stdout, and to a stderr that is a terminal of 80 columns."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "memagent", *arguments],
        stdout=subprocess.PIPE,
        stderr=theirs,
        text=True,
        env={**os.environ, "COLUMNS": "80"},
    )
    os.close(theirs)
    stderr = b""
    while select.select([ours], [], [], 60)[0]:
        try:
            stderr += os.read(ours, 65536)
        except OSError:  # the other side is closed
            break
    os.close(ours)
    stdout, _ = process.communicate(timeout=60)
    assert process.returncode == 0, (stdout, stderr)
    return stdout, stderr.decode()


SWEEP = ("estimate", "--model", "gpt2", "--sweep", "batch=1,2", "--json")


def test_a_sweep_draws_a_bar_on_a_terminal_and_erases_it():
    stdout, stderr = on_terminal(*SWEEP)
    assert stdout.startswith("[")
    assert "  0%  1 of 2 estimates" in stderr
    assert stderr.endswith("\r\x1b[K")


def test_without_a_terminal_no_progress_is_shown():
    process = subprocess.run(
        [sys.executable, "-m", "memagent", *SWEEP], capture_output=True, text=True, timeout=60
    )
    assert process.returncode == 0 and process.stderr == ""
