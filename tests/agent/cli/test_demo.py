"""`memagent demo` in a terminal: its links answer while it says so, and Ctrl-C leaves nothing."""

from __future__ import annotations

import dataclasses
import json
import os
import pty
import re
import signal
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from memagent.cli import demo as cli
from memagent_demo import processes, summary
from tests.snippets import ROOT

HEALTHY = summary.HealthyRun("healthy-1", "completed", 300, 0, 2**28, 2**30)
LEAKING = summary.LeakingRun(
    run_id="leaking-1", status="oom", oom_step=300, first_warning_step=200, eta_at_warning=290.0,
    warned_seconds_before=12.0, slack_text="it leaks\nRunbook: http://h/runbooks\nhttp://127.0.0.1:1/runs/leaking-1",
    cause="leak", peak_bytes=2**30, limit_bytes=2**30, error=None, checkpoint_step=201,
)  # fmt: skip

STEPS = r"^leaking  step (\d+): first warning.*^         step (\d+): ended as oom"

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="the kernel enforces RLIMIT_DATA only on Linux"
)


class Terminal:
    """A demo whose output is a terminal; Ctrl-C reaches its process group."""

    def __init__(self, folder, *options: str) -> None:
        self._master, slave = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "memagent", "demo", *options],
            env={**os.environ, "TMPDIR": str(folder)},
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            # a shell that starts these tests in the background has SIGINT ignored
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509
        )
        os.close(slave)
        self.text = ""
        self._lines = self._read()

    def _read(self) -> Iterator[str]:
        with os.fdopen(self._master, "rb", buffering=0) as master:
            pending = b""
            try:
                while data := master.read(4096):
                    *lines, pending = (pending + data).split(b"\r\n")
                    yield from (line.decode() for line in lines)
            except OSError:  # no process has the terminal open any more
                return

    def wait_for(self, pattern: str) -> re.Match[str]:
        for line in self._lines:
            self.text += f"{line}\n"
            if match := re.search(pattern, line):
                return match
        raise AssertionError(f"never printed {pattern}:\n{self.text}")

    def press_ctrl_c(self) -> int:
        os.killpg(self.process.pid, signal.SIGINT)
        self.text += "\n".join(self._lines)
        return self.process.wait()


@pytest.fixture
def terminal(tmp_path):
    """terminal(*options): start a demo; it is ended with the test."""
    started: list[Terminal] = []

    def terminal(*options: str) -> Terminal:
        started.append(Terminal(tmp_path, *options))
        return started[-1]

    yield terminal
    for demo in started:
        demo.process.terminate()
        demo.process.wait()


def status_of(link: str) -> int:
    """Open a link in a browser that hasn't opened any other."""
    browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
    with browser.open(link) as response:
        assert "/login" not in response.url
        return response.status


@pytest.mark.slow
def test_the_links_answer_during_and_after_the_demo_until_ctrl_c(terminal, tmp_path):
    demo = terminal("--limit", "700MiB", "--steps", "60")
    demo.wait_for("demo: 1/4 start")
    link = demo.wait_for(r"demo: 1/4 open (http://\S+):")[1]
    assert status_of(link) == 200
    url = link.partition("/login")[0]
    for stage in (2, 3, 4):
        demo.wait_for(rf"demo: {stage}/4 .*\(.*\)$")
    demo.wait_for("^healthy ")
    page = demo.wait_for(r"(http://\S+/runs/leaking-\w+)")[1]
    docs = demo.wait_for(r"read +(\S+)")[1]
    demo.wait_for("until Ctrl-C")
    assert docs.startswith(url) and (status_of(page), status_of(docs)) == (200, 200)
    assert demo.press_ctrl_c() == 0, demo.text
    assert re.search("^healthy  60 steps, .*: completed, 0 alerts$", demo.text, re.MULTILINE)
    warned, died = map(int, re.search(STEPS, demo.text, re.MULTILINE | re.DOTALL).groups())
    assert warned < died and "Slack had the warning" in demo.text
    assert "on_risk saved a checkpoint" in demo.text
    rehearsal = demo.text.partition("on a GPU that isn't there:")[2]
    assert re.search("fits, with|no verdict: .* needs a CUDA build of torch", rehearsal)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(urllib.error.URLError):
        status_of(url)


def test_ctrl_c_during_a_training_leaves_no_process_and_no_file(terminal, tmp_path):
    demo = terminal()
    demo.wait_for("run healthy-.* is recorded")
    processes = psutil.Process(demo.process.pid).children(recursive=True)
    assert len(processes) >= 3  # server, worker and training
    assert demo.press_ctrl_c() == 130
    assert "Traceback" not in demo.text
    assert psutil.wait_procs(processes, timeout=60)[1] == []
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_card_is_refused_at_once(terminal):
    demo = terminal("--gpu", "rtx409")
    demo.wait_for("memagent: --gpu 'rtx409' is not known: did you mean rtx4090")
    assert demo.process.wait() == 2 and "1/4" not in demo.text


def test_a_training_that_cannot_start_says_why(terminal, tmp_path):
    demo = terminal("--limit", "100MiB")
    demo.wait_for("the healthy training failed: .*Is --limit large enough")
    assert demo.process.wait() == 1 and list(tmp_path.iterdir()) == []


REHEARSE = """
import json, sys
from pathlib import Path
from memagent_demo import processes
rehearsal = processes.rehearse(sys.argv[1], Path(sys.argv[2]))
print(json.dumps([rehearsal.lines, rehearsal.report]))
"""


def rehearsed(python: Path, gpu: str, folder: Path, **variables: str) -> tuple[list[str], dict]:
    paths = [str(ROOT / name) for name in ("agent", "demo")]
    ended = subprocess.run(
        [str(python), "-c", REHEARSE, gpu, str(folder)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), **variables},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return json.loads(ended.stdout)


def test_the_demo_rehearses_its_training_on_a_card(cuda_python, tmp_path):
    lines, report = rehearsed(cuda_python, "t4", tmp_path)
    assert lines[0].startswith("train.py on Tesla T4, ") and lines[1].startswith("fits, with ")
    assert [line.split("  ")[1] for line in lines[2:]] == [
        "tensors' peak", "reserved by torch", "on the device"
    ]  # fmt: skip
    assert (report["fits"], report["steps"]) == (True, processes.REHEARSED_STEPS)
    assert report["phases"].keys() >= {"forward", "backward", "optimizer"}


def test_a_rehearsal_that_fails_says_why(cuda_python, tmp_path):
    nothing = {"PATH": "", "CC": "", "XDG_CACHE_HOME": str(tmp_path)}
    lines, report = rehearsed(cuda_python, "t4", tmp_path, **nothing)
    assert lines == [f"no verdict: {report['error']}"]
    assert report["error"].startswith("A rehearsal compiles its device at first use")


def test_the_summary_shows_a_rehearsal_and_its_command():
    rehearsal = processes.GpuRehearsal("t4", ["train.py on Tesla T4", "fits"], {})
    text = summary.to_text(HEALTHY, LEAKING, None, rehearsal=rehearsal)
    assert "\n  train.py on Tesla T4\n  fits\n\nNext:" in text
    assert "rehearse --gpu t4 SCRIPT" in text


def test_the_summary_has_no_links_to_a_server_that_stops():
    text = summary.to_text(HEALTHY, LEAKING, None)
    assert "/runs/" not in text and "Runbook" not in text and "it leaks" in text
    assert "memagent serve`, then" in text


def test_the_summary_links_the_runs_of_a_server_that_stays():
    links = {page: f"http://127.0.0.1:1{page}" for page in summary.pages(HEALTHY, LEAKING)}
    text = summary.to_text(HEALTHY, LEAKING, links, "MEMAGENT_SERVER=http://127.0.0.1:1")
    assert "http://127.0.0.1:1/runs/healthy-1" in text and "Runbook: " in text
    assert "run it with MEMAGENT_SERVER=http://127.0.0.1:1" in text and "serve`, then" not in text


def test_the_summary_says_if_no_message_arrived():
    late = dataclasses.replace(LEAKING, slack_text=None, warned_seconds_before=None)
    text = summary.to_text(HEALTHY, late, None)
    assert "none arrived before the crash" in text and "Slack had" not in text


def test_the_json_names_the_database_that_it_leaves():
    server = processes.Server(Path("demo"), slack_url="")
    server.database = "sqlite:///demo/demo.db"
    story = json.loads(json.dumps(summary.to_json(HEALTHY, LEAKING, server, None)))
    assert story["database"] == server.database
    assert story["leaking"]["checkpoint_step"] == 201


@pytest.mark.parametrize("is_kept", [True, False])
def test_the_folder_stays_if_its_name_was_printed(tmp_path, monkeypatch, is_kept):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with cli._temporary_folder(is_kept=is_kept) as folder:
        assert folder.parent == tmp_path
    assert folder.exists() == is_kept
