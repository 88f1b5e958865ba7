"""`memagent run` on unchanged scripts, as real processes."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from memagent.api.client import Api
from tests.python_fork import ForkServer

SCRIPT = """
import sys
import torch
model = torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))
optimizer = torch.optim.Adam(model.parameters())
for step in range(12):
    optimizer.zero_grad()
    model(torch.randn(8, 32)).sum().backward()
    optimizer.step()
print("args", sys.argv, __name__)
"""


@pytest.fixture
def memagent_run(fork_server: ForkServer, tmp_path: Path):
    """Write a script, run it under `memagent run`, return (process, report or None). A `cold` Python has not imported torch."""

    def run(
        script: str,
        *options: str,
        arguments: tuple[str, ...] = (),
        is_cold: bool = False,
        **environ: str,
    ):
        path = tmp_path / "train.py"
        path.write_text(textwrap.dedent(script))
        report = tmp_path / "out" / "report.json"
        command = [
            "-m",
            "memagent",
            "run",
            "--report",
            str(report),
            *options,
            str(path),
            *arguments,
        ]
        process = (
            cold(command, environ)
            if is_cold
            else fork_server.run(*command, env={**os.environ, **environ})
        )
        return process, json.loads(report.read_text()) if report.exists() else None

    return run


def cold(command: list[str], environ: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command],
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_an_unchanged_script_is_recorded_and_reported(memagent_run):
    process, report = memagent_run(SCRIPT, arguments=("--lr", "3"))
    assert process.returncode == 0, process.stderr
    assert "train.py', '--lr', '3'] __main__" in process.stdout
    assert (report["status"], report["steps"], report["samples"], report["dropped_samples"]) == (
        "completed",
        12,
        13,
        {},
    )
    parameters = 4 * (32 * 32 + 32 + 32 + 1)
    assert report["components"]["parameters"] == parameters
    assert report["components"]["optimizer_state"] >= 2 * parameters
    assert report["peaks"]["host"]["peak_allocated_bytes"] > 50 * 2**20
    assert report["prediction"]["components"]["parameters"] == parameters
    assert report["forecast"]["level"] == "ok" and report["suspects"] == []


def test_the_outermost_module_is_found(memagent_run):
    process, _ = memagent_run(
        SCRIPT.replace("optimizer =", "class Wrapper(torch.nn.Module):\n"
        "    def __init__(self, inner):\n        super().__init__(); self.inner = inner\n"
        "    def forward(self, x):\n        return self.inner(x)\n"
        "outer = Wrapper(model)\noptimizer =")
        + "print('hooks', bool(outer._forward_hooks), bool(model._forward_hooks))"
    )  # fmt: skip
    assert "hooks True False" in process.stdout


def test_a_script_that_attaches_by_itself_takes_over(memagent_run):
    own = SCRIPT.replace(
        "for step",
        "import memagent\nrun = memagent.attach(model, optimizer, name='mine')\nfor step",
    )
    process, report = memagent_run(
        own + "\nprint('id', run.id, len(optimizer._optimizer_step_post_hooks))"
    )
    assert process.returncode == 0, process.stderr
    assert f"id {report['run_id']} 0" in process.stdout
    assert report["steps"] == 12


def test_a_failing_script_fails_as_under_python(memagent_run):
    process, report = memagent_run(SCRIPT + "\nraise ValueError('no luck')\n", is_cold=True)
    assert process.returncode == 1
    assert (report["status"], report["steps"], report["samples"]) == ("failed", 12, 13)
    assert process.stderr.rstrip().endswith("ValueError: no luck")
    assert "runpy" not in process.stderr and "cli/run.py" not in process.stderr


def test_exit_codes_pass_through(memagent_run):
    process, report = memagent_run(SCRIPT + "\nsys.exit(7)\n")
    assert process.returncode == 7 and report["status"] == "failed"


@pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="the kernel keeps RLIMIT_DATA only on Linux"
)
def test_a_real_out_of_memory_is_reported_as_such(memagent_run):
    script = (
        "import resource\nresource.setrlimit(resource.RLIMIT_DATA, (2**30, 2**30))\n"
        + SCRIPT.replace(
            "    optimizer.step()\n",
            "    optimizer.step()\n    kept = globals().setdefault('kept', []); kept.append(torch.ones(2**25))\n",
        )
    )
    process, report = memagent_run(script)
    assert process.returncode == 1 and "can't allocate memory" in process.stderr
    assert report["status"] == "oom" and 0 < report["steps"] < 12
    assert (
        report["peaks"]["host"]["limit_bytes"] == 2**30
        and report["peaks"]["host"]["limit_source"] == "RLIMIT_DATA"
    )


def test_a_memory_budget_fails_the_script_that_exceeds_it(memagent_run):
    assert memagent_run(SCRIPT, "--fail-over", "100GiB")[0].returncode == 0
    process, _ = memagent_run(SCRIPT, "--fail-over", "1MiB")
    assert process.returncode == 1 and "exceeds the budget of 1.0 MiB" in process.stderr


NO_OPTIMIZER = """
import torch
block = torch.ones(150 * 2**20)
del block
"""


@pytest.mark.parametrize(("budget", "status"), [("500MiB", 1), ("9GiB", 0)])
def test_a_script_without_an_optimizer_has_a_report_and_a_budget(memagent_run, budget, status):
    process, report = memagent_run(NO_OPTIMIZER, "--fail-over", budget)
    assert process.returncode == status, process.stderr
    assert (report["status"], report["steps"]) == ("completed", 0)
    assert report["peaks"]["host"]["peak_allocated_bytes"] > 600 * 2**20


KILLED = """
import os, pathlib, time
report = pathlib.Path(os.environ["REPORT"])
while not report.exists():
    time.sleep(0.01)
"""


@pytest.mark.parametrize("script", [SCRIPT, NO_OPTIMIZER], ids=["optimizer", "none"])
@pytest.mark.parametrize(
    ("budget", "own", "status"), [("100GiB", 0, 0), ("1MiB", 0, 1), ("1MiB", 5, 5)]
)
def test_os_exit_leaves_a_report_and_checks_the_budget(memagent_run, script, budget, own, status):
    process, report = memagent_run(script + f"import os; os._exit({own})\n", "--fail-over", budget)
    assert process.returncode == status, process.stderr
    assert report["status"] == ("failed" if own else "completed")
    assert ("exceeds the budget" in process.stderr) == (status == 1)


@pytest.mark.parametrize("script", [SCRIPT, "import torch\nmemory = torch.ones(100)\n"])
def test_another_program_in_the_process_leaves_a_report_and_ends_the_run(memagent_run, script):
    """`os.execlp` tries each folder of PATH: a candidate that doesn't exist ends nothing."""
    exec_script = """
import os
import re
try:
    os.execv("/nowhere/program", ["program"])
except FileNotFoundError:
    print("still here", flush=True)
os.execlp("echo", "echo", "another program")
"""
    process, report = memagent_run(script + exec_script)
    assert process.returncode == 0, process.stderr
    assert process.stdout.endswith("still here\nanother program\n")
    assert report["status"] == "completed" and report["peaks"]
    assert report["steps"] == (12 if script is SCRIPT else 0)


@pytest.mark.parametrize("number", ["SIGKILL", "SIGTERM"])
def test_a_killed_script_leaves_its_newest_report(memagent_run, tmp_path, number):
    path = tmp_path / "out" / "report.json"
    path.parent.mkdir()
    path.write_text("{}")  # of an earlier run: it must not be taken for that of this one
    kill = f"import signal\nos.kill(os.getpid(), signal.{number})\ntime.sleep(60)\n"
    process, report = memagent_run(SCRIPT + KILLED + kill, is_cold=True, REPORT=str(path))
    assert process.returncode == -getattr(signal, number)
    assert report["status"] == "running" and 0 <= report["steps"] <= 12


FORKED = """
import json, os
child = os.fork()
if child:
    os.waitpid(child, 0)
    path = os.environ["REPORT"]
    print("now", json.load(open(path))["status"] if os.path.exists(path) else "running")
"""


def test_a_fork_that_ends_like_the_script_writes_no_report(memagent_run, tmp_path):
    path = str(tmp_path / "out" / "report.json")
    process, report = memagent_run(SCRIPT + FORKED, REPORT=path, is_cold=True)
    assert process.returncode == 0 and "now running" in process.stdout
    assert (report["status"], report["steps"]) == ("completed", 12)


PRELUDE = """
import torch
def make():
    model = torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.Linear(32, 1))
    return model, torch.optim.Adam(model.parameters())
def step(model, optimizer):
    model(torch.randn(8, 32)).sum().backward()
    optimizer.step()
"""
SCRIPTS = {
    "k-fold": (100, """
for fold in range(5):
    model, optimizer = make()
    for _ in range(20): step(model, optimizer)
"""),
    "k-fold with all models kept": (100, """
folds = [make() for _ in range(5)]
for fold in folds:
    for _ in range(20): step(*fold)
"""),
    "forward-forward": (180, """
x = torch.randn(8, 32)
for layer in [torch.nn.Linear(32, 32) for _ in range(3)]:
    optimizer = layer.optimizer = torch.optim.Adam(layer.parameters())
    for _ in range(60):
        layer(x).pow(2).mean().backward()
        optimizer.step()
    x = layer(x).detach()
"""),
    "an optimizer of the script's own": (20, """
class Own(torch.optim.Optimizer):
    def __init__(self, parameters): super().__init__(parameters, {})
    @torch.no_grad()
    def step(self):
        for parameter in self.param_groups[0]["params"]: parameter -= 0.1 * parameter.grad
model, _ = make()
optimizer = Own(model.parameters())
for _ in range(20): step(model, optimizer)
"""),
    "an update by hand": (None, """
model = torch.nn.Linear(32, 1)
for _ in range(20):
    model(torch.randn(8, 32)).sum().backward()
    with torch.no_grad():
        for parameter in model.parameters(): parameter -= 0.1 * parameter.grad
"""),
    "a spawned trainer": (None, """
def train():
    block = torch.ones(150 * 2**20)
    model, optimizer = make()
    for _ in range(20): step(model, optimizer)
if __name__ == "__main__":
    process = torch.multiprocessing.get_context("spawn").Process(target=train)
    process.start()
    process.join()
"""),
    "nothing": (0, ""),
}  # fmt: skip


@pytest.mark.parametrize("name", SCRIPTS)
def test_every_step_has_a_sample_or_is_counted_as_dropped(memagent_run, name):
    steps, script = SCRIPTS[name]
    process, report = memagent_run(PRELUDE + script, "--fail-over", "50MiB")
    assert process.returncode == 1 and "exceeds the budget of 50.0 MiB" in process.stderr
    assert report["status"] == "completed"
    assert report["steps"] == report["samples"] - 1 + sum(report["dropped_samples"].values())
    if steps is not None:
        assert report["steps"] == steps


def test_a_failing_script_without_an_optimizer_has_a_report(memagent_run):
    process, report = memagent_run("import torch\ntorch.empty(2**50)")
    assert process.returncode == 1 and "can't allocate memory" in process.stderr
    assert report["status"] == "oom"


def test_when_disabled_the_script_runs_without_the_agent(memagent_run):
    process, report = memagent_run(SCRIPT, MEMAGENT_DISABLED="1")
    assert process.returncode == 0 and report is None


PRINTING = """
import contextlib, io, logging, os, sys, torch
print("before", "api_key=abc123")
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(3):
    model(torch.randn(2, 4)).sum().backward()
    optimizer.step()
    sys.stderr.write(f"\\rstep {step}")
logging.warning("logged")
with contextlib.redirect_stdout(io.StringIO()) as hidden:
    print("inner")
print(sys.stdout is sys.__stdout__, sys.stdout.encoding, sys.stdout.fileno(), repr(hidden.getvalue()))
class Late:
    def __del__(self):
        print("late")
sys.late = Late()
raise ValueError("boom")
"""


def test_the_console_has_what_the_script_prints_which_is_the_same_without_it(
    memagent_run, tmp_path
):
    outputs = {}
    for switch in ("0", "1"):
        environ = {"MEMAGENT_CONSOLE": switch, "MEMAGENT_DIR": str(tmp_path / switch)}
        process, _ = memagent_run(PRINTING, is_cold=True, **environ)
        own = re.sub(r"memagent: .*\n(  .*\n(?=  |Trace))*", "", process.stderr)
        outputs[switch] = process.returncode, process.stdout, own.replace("\\r", "")
    alone = cold([str(tmp_path / "train.py")], {})
    assert outputs["0"][:2] == outputs["1"][:2] == (alone.returncode, alone.stdout)
    assert (
        "Traceback" in outputs["1"][2] and "memagent" not in outputs["1"][2].split("Traceback")[1]
    )
    runs = {name: next(iter(Api(tmp_path / name).runs())) for name in outputs}
    assert runs["0"].console() == []
    lines = [line["text"] for line in runs["1"].console() if "memagent: " not in line["text"]]
    assert lines[0] == "before api_key=***" and lines[-1] == "ValueError: boom"
    assert "step 2WARNING:root:logged" in lines and "inner" not in lines
    assert runs["1"].console(search="TRACEBACK")[0]["step"] == 3
    assert runs["1"].explain().console[-1] == "ValueError: boom"


def test_the_console_has_the_last_lines_before_a_kill(memagent_run, tmp_path):
    script = SCRIPT + (
        "import os, signal, time\n"
        "print('last words')\n"
        "folder = os.environ['MEMAGENT_DIR']\n"
        "def is_on_disk():\n"
        "    return any(b'last words' in open(f'{folder}/{name}', 'rb').read() for name in os.listdir(folder))\n"
        "while not is_on_disk(): time.sleep(0.05)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    process, _ = memagent_run(script, is_cold=True, MEMAGENT_DIR=str(tmp_path / "runs"))
    assert process.returncode == -signal.SIGKILL
    run = next(iter(Api(tmp_path / "runs").runs()))
    assert [line["text"] for line in run.console()][-1] == "last words"


def test_attach_records_the_console_if_asked(memagent_run, tmp_path):
    script = SCRIPT.replace(
        "for step",
        "import memagent\nprint('unseen')\n"
        "run = memagent.attach(model, optimizer, console=True)\nprint('seen')\nfor step",
    )
    path = tmp_path / "attach.py"
    path.write_text(script)
    process = cold([str(path)], {"MEMAGENT_DIR": str(tmp_path / "runs")})
    assert process.returncode == 0, process.stderr
    run = next(iter(Api(tmp_path / "runs").runs()))
    lines = [line["text"] for line in run.console(search="seen")]
    assert lines == ["seen"]
