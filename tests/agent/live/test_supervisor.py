"""`memagent run --live` in a real terminal (a pty)."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from importlib.util import find_spec
from pathlib import Path

import pytest

from memagent.cli import main
from memagent.live.view import HEIGHT, RunState, render_line, render_lines

GIB = 2**30
SCRIPT = """
import os, sys, time, torch
model = torch.nn.Linear(32, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(25):
    model(torch.randn(8, 32)).sum().backward()
    optimizer.step()
    print("line", step, flush=True)
    sys.stderr.write(f"\\rbar {step}")
    time.sleep(0.1)
print(sys.argv[1:], os.get_terminal_size(2), flush=True)
sys.exit(3)
"""
DRAWN = re.compile(r"(?:\n{4}\x1b\[4A)?\x1b7.*?\x1b8", re.DOTALL)


def message(rank: int = 0, steps: int = 10, peak: int = 6 * GIB, **forecast: object) -> dict:
    device = {"name": "a GPU", "peak_allocated_bytes": peak, "limit_bytes": 8 * GIB}
    forecast_message = {"level": "ok", "used_bytes": 4 * GIB, **forecast}
    about = {"run_id": "r", "rank": rank, "status": "running", "steps": steps, "total_steps": 100}
    return {**about, "peaks": {"GPU-1": device}, "forecast": forecast_message}


def test_it_shows_pace_and_remaining_time():
    state = RunState()
    state.update(message(steps=10), 0.0)
    state.update(message(steps=10), 1.0)
    state.update(message(steps=30), 2.0)
    rank = state.fullest_rank()
    assert rank is not None and rank.pace == 10.0
    assert render_line(rank) == (
        "step 30 of 100; 10 steps/s; 7 s left; "
        "4.00 GiB of 8.00 GiB (50%), peak 6.00 GiB, headroom 2.00 GiB on a GPU; forecast: ok"
    )


def test_it_shows_the_rank_nearest_to_its_limit():
    state = RunState()
    assert state.fullest_rank() is None
    for rank, peak in ((0, 2 * GIB), (1, 7 * GIB), (2, 3 * GIB)):
        state.update(message(rank, peak=peak), 0.0)
    rank = state.fullest_rank()
    assert rank is not None and (rank.rank, rank.ranks) == (1, 3)
    assert "headroom 1.00 GiB on a GPU, rank 1 of 3" in render_line(rank)


@pytest.mark.parametrize("columns", [30, 80, 200])
def test_every_line_fits_and_the_forecast_says_when_and_why(columns):
    needs_rich()
    state = RunState()
    state.update(
        message(level="critical", eta_step=50.0, eta_s=8.0, oom_probability=0.9, cause="leak"), 0.0
    )
    rank = state.fullest_rank()
    assert rank is not None
    lines = render_lines(rank, columns, in_color=False)
    assert len(lines) == HEIGHT and all(len(line) <= columns for line in lines)
    if columns >= 80:
        assert lines[0].startswith("memagent · r · a GPU ") and lines[2].rstrip().endswith(
            "headroom 2.00 GiB"
        )
    assert "forecast: critical: out of memory in about 40 steps (8 s), 90% likely; cause: leak".startswith(
        lines[3].rstrip().removesuffix("…")
    )


SENDER = """
import json, os, signal, socket, sys, time
with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
    for step in range(4):
        sender.sendto(MESSAGE % step, os.environ["MEMAGENT_LIVE"])
        sender.sendto(b"[]", os.environ["MEMAGENT_LIVE"])
        print("line", step, flush=True)
        time.sleep(0.3)
END
"""


def live_command(folder: Path, end: str = "") -> list[str]:
    """A command that publishes a run's state, without torch."""
    content = json.dumps(message()).replace('"steps": 10', '"steps": %d').encode()
    script = folder / "sender.py"
    script.write_text(SENDER.replace("MESSAGE", repr(content)).replace("END", end))
    command = [sys.executable, str(script)]
    call = f"from memagent.live.supervisor import run_with_view; raise SystemExit(run_with_view({command!r}))"
    return [sys.executable, "-c", call]


class Terminal:
    """A command with stdin, stdout and stderr on a pty."""

    def __init__(self, command: list[str], rows: int = 24) -> None:
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, 100, 0, 0))
        self.process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs)
        os.close(theirs)

    def read(self) -> str:
        """Return all output until the command and its children have exited."""
        output, until = b"", time.monotonic() + 90
        while time.monotonic() < until and select.select([self._ours], [], [], 60)[0]:
            try:
                output += os.read(self._ours, 65536)
            except OSError:
                break
        os.close(self._ours)
        self.process.wait(10)
        return output.decode().replace("\r\n", "\n")


def needs_rich() -> None:
    if find_spec("rich") is None:
        reason = "rich is not installed: pip install 'memagent[live]'"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)


def test_the_view_does_not_change_the_scripts_output(tmp_path):
    needs_rich()
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    terminal = Terminal(
        [sys.executable, "-m", "memagent", "run", "--live", str(script), "an argument"]
    )
    output = terminal.read()
    assert terminal.process.returncode == 3
    assert "\x1b[1;20r" in output and output.rindex("\x1b[r") > output.rindex("\x1b[1;20r")
    status = "".join(DRAWN.findall(output))
    assert re.search(r"step \d+ · ", status) and "headroom" in status and "forecast" in status
    rest = DRAWN.sub("", output)
    own = (
        "".join(f"line {step}\n\rbar {step}" for step in range(25))
        + "['an argument'] os.terminal_size(columns=100, lines=24)\n"
    )
    assert rest[rest.index("line 0") :] == own


def test_it_restores_the_terminal_after_a_killed_script(tmp_path):
    needs_rich()
    terminal = Terminal(live_command(tmp_path, end="os.kill(os.getpid(), signal.SIGKILL)"))
    output = terminal.read()
    assert terminal.process.returncode == 137
    assert output.rindex("\x1b[r") > output.rindex("\x1b[1;20r")


def test_it_forwards_signals_to_the_script(tmp_path):
    needs_rich()
    end = (
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(5)); "
        "os.kill(os.getppid(), signal.SIGTERM); time.sleep(30)"
    )
    terminal = Terminal(live_command(tmp_path, end=end))
    terminal.read()
    assert terminal.process.returncode == 5


def test_a_small_terminal_has_no_view(tmp_path):
    needs_rich()
    terminal = Terminal(live_command(tmp_path), rows=8)
    assert terminal.read() == "".join(f"line {step}\n" for step in range(4))


def test_without_a_terminal_it_prints_plain_lines(tmp_path):
    done = subprocess.run(live_command(tmp_path), capture_output=True, text=True, timeout=90)
    assert (done.returncode, done.stdout) == (0, "".join(f"line {step}\n" for step in range(4)))
    assert re.fullmatch(
        r"memagent: step \d of 100; .*headroom 2.00 GiB on a GPU; forecast: ok\n", done.stderr
    )


def test_it_says_what_to_install(tmp_path, monkeypatch, capsys):
    (tmp_path / "train.py").write_text("")
    monkeypatch.setattr("memagent.live.supervisor.find_spec", lambda _: None)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    assert main(["run", "--live", str(tmp_path / "train.py")]) == 1
    assert "pip install 'memagent[live]'" in capsys.readouterr().err
