"""The agent never harms its script: tested on real processes."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
from collections.abc import Callable

import pytest
import torch

import memagent
from memagent.sampling.sampler import Sampler

STEPS = """
import torch, memagent
model = torch.nn.Linear(16, 16)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
run = memagent.attach(model, optimizer)
def step():
    model(torch.randn(4, 16)).sum().backward(); optimizer.step(); optimizer.zero_grad()
"""


@pytest.fixture
def run_script(fork_server) -> Callable[..., subprocess.CompletedProcess[str]]:
    """run_script(code, NAME="setting") runs a process that attaches, then runs the code."""
    return lambda code, **environ: fork_server.run(
        "-c", STEPS + textwrap.dedent(code), env={**os.environ, **environ}
    )


def test_a_server_that_is_down_costs_no_sample(run_script, recording):
    process = run_script(
        "for _ in range(50): step()\nprint('trained')", MEMAGENT_SERVER="http://127.0.0.1:9"
    )
    assert process.returncode == 0 and process.stdout == "trained\n"
    assert "cannot be reached" in process.stderr and "51 samples wait in" in process.stderr
    assert (
        recording().columns()["step"] == list(range(51))
        and recording().finish.status == "completed"
    )


def test_a_server_that_never_replies_does_not_block_the_script(run_script):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        process = run_script(
            "for _ in range(50): step()\nprint('trained')",
            MEMAGENT_SERVER=f"http://127.0.0.1:{silent.getsockname()[1]}",
        )
        assert process.returncode == 0 and process.stdout == "trained\n"


def test_an_exit_without_finish_still_ends_the_run(run_script, recording):
    assert run_script("for _ in range(5): step()").returncode == 0
    assert recording().finish.status == "completed" and recording().columns()["step"] == list(
        range(6)
    )


def test_an_uncaught_exception_reaches_the_user_unchanged_and_ends_the_run_as_failed(
    run_script, recording
):
    process = run_script("step()\nraise KeyError('mine')")
    assert process.returncode == 1 and process.stderr.rstrip().endswith("KeyError: 'mine'")
    assert recording().finish.status == "failed" and recording().finish.error == "KeyError: 'mine'"


@pytest.mark.parametrize(
    ("ending", "status", "error"),
    [
        ("sys.exit(1)", "failed", "SystemExit: 1"),
        ("sys.exit('no data')", "failed", "SystemExit: no data"),
        ("sys.exit(0)", "completed", None),
        ("os._exit(3)", "failed", "SystemExit: 3"),
        ("os._exit(status=0)", "completed", None),
        ("os.execlp('true', 'true')", "completed", None),
        ("if os.fork() == 0: os._exit(3)\nos.wait()", "completed", None),
        ("try: torch.empty(2**50)\nexcept RuntimeError: sys.exit(1)", "oom", "SystemExit: 1"),
        ("try: sys.exit(1)\nexcept SystemExit: step()", "completed", None),
        (
            "signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))\nsignal.raise_signal(15)",
            "failed",
            "SystemExit: 1",
        ),
        ("sys.exit(143)", "stopped", "SystemExit: 143"),
        (
            "os.kill(os.getpid(), signal.SIGTERM)\nstep()",
            "stopped",
            "SIGTERM: the script sent it to itself",
        ),
    ],
)
def test_an_exit_ends_the_run_with_its_status(run_script, recording, ending, status, error):
    process = run_script("import os, sys, signal\nstep()\n" + ending)
    assert (process.returncode == 0) == (status == "completed"), process.stderr
    assert (recording().finish.status, recording().finish.error) == (status, error)
    assert [event.kind for event in recording().events] == ["oom"] * (status == "oom")


def test_an_interrupt_still_ends_the_process_by_its_signal(tmp_path):
    # without the modules that the fork server has imported: importing them must not hide it
    process = subprocess.run(
        [sys.executable, "-c", STEPS + "step()\nraise KeyboardInterrupt"],
        env={**os.environ, "MEMAGENT_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == -signal.SIGINT
    assert "memagent: stopped after 1 step (KeyboardInterrupt: )" in process.stderr


def test_a_signal_from_outside_stops_the_run_and_ends_the_process(run_script, recording):
    process = run_script(
        """
        import os, subprocess
        step()
        subprocess.Popen(["kill", "-TERM", str(os.getpid())])
        while True: step()
        """,
        SLURM_JOB_ID="4711",
    )
    assert process.returncode == -signal.SIGTERM and "stopped after" in process.stderr
    finish = recording().finish
    assert finish.status == "stopped" and finish.step >= 1
    assert finish.error.startswith("SIGTERM") and "Slurm job 4711 was preempted" in finish.error


@pytest.mark.parametrize(("planned", "status"), [("None", "stopped"), ("1", "completed")])
def test_a_script_that_leaves_after_a_signal_was_stopped_unless_it_is_done(
    fork_server, recording, planned, status
):
    code = f"""
import signal, threading
signals = []
signal.signal(signal.SIGTERM, lambda *_: signals.append(1))
{STEPS.replace("optimizer)", f"optimizer, total_steps={planned})")}
step()
signal.raise_signal(signal.SIGTERM)
while not run._pipeline.exits._stop:
    threading.Event().wait(0.01)
print(signals)
"""
    process = fork_server.run("-c", code)
    assert (process.returncode, process.stdout) == (0, "[1]\n"), process.stderr
    assert recording().finish.status == status


def test_it_reports_an_out_of_memory_error_of_the_training_thread(run_script, recording):
    code = """
        import threading
        def train():
            step()
            torch.empty(2**50)
        thread = threading.Thread(target=train)
        thread.start(); thread.join()
    """
    process = run_script(code)
    assert process.returncode == 0 and "memagent: out of memory in data of step 2" in process.stderr
    assert "memagent: Out of memory in data of step 2 on host" in process.stderr
    assert recording().finish.status == "oom" and [event.kind for event in recording().events] == [
        "oom"
    ]


@pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="the kernel keeps RLIMIT_DATA only on Linux"
)
def test_the_oom_event_leaves_the_process(run_script, recording):
    process = run_script(
        """
        import resource
        resource.setrlimit(resource.RLIMIT_DATA, (2**30, 2**30))
        kept = []
        while True:
            step()
            kept.append(b"x" * 2**24)
        """
    )
    assert process.returncode == 1 and "MemoryError" in process.stderr
    result = recording()
    assert result.finish is not None and result.finish.status == "oom", process.stderr
    assert result.finish.step == result.columns()["step"][-1] > 10
    # a forecast may have begun a diagnosis before
    [event] = [event for event in result.events if event.kind == "oom"]
    host = event.data["devices"]["host"]
    assert host["used_bytes"] > 0.8 * 2**30 == 0.8 * host["limit_bytes"]
    assert host["components"]["parameters"] == host["components"]["gradients"] > 0
    assert event.data["phase"] == "data" and event.data["asked_bytes"] is None


@pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="the kernel keeps RLIMIT_DATA only on Linux"
)
def test_the_oom_event_has_phase_size_and_largest_tensors(run_script, recording):
    process = run_script(
        """
        import resource
        hog = torch.ones(2**26)  # 256 MiB
        optimizer.param_groups[0]["momentum"] = 0.9
        resource.setrlimit(resource.RLIMIT_DATA, (2**30, 2**30))
        step()
        model(hog[:64].reshape(4, 16)).sum().backward()
        with run.phase("eval"):
            torch.ones(2**28)
        """
    )
    assert process.returncode == 1
    (event,) = recording().events
    assert event.data["phase"] == "eval" and event.data["asked_bytes"] == 2**30
    largest = event.data["largest_tensors"]
    assert (largest[0]["size_bytes"], largest[0]["shape"], largest[0]["kind"]) == (
        2**28,
        [2**26],
        "other",
    )
    assert largest[0]["name"] == "hog"
    assert {(item["name"], item["kind"]) for item in largest[1:]} >= {
        ("weight", "parameter"),
        ("weight.grad", "gradient"),
        ("weight.momentum_buffer", "optimizer_state"),
    }
    *_, error, note = process.stderr.rstrip().splitlines()
    assert error.startswith("RuntimeError") and "tried to allocate 1073741824 bytes" in error
    if sys.version_info >= (3, 11):
        assert note.startswith(
            "memagent: out of memory in eval of step 2, allocating 1.00 GiB with "
        )
        assert note.endswith(".memagent")


def test_a_caught_out_of_memory_error_is_an_event_and_not_the_end(training, recording, monkeypatch):
    model, optimizer, step = training
    observers = []
    monkeypatch.setattr(
        torch._C, "_cuda_attach_out_of_memory_observer", observers.append, raising=False
    )
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr("memagent.hooks.oom_observer._observed_cores", [])
    with memagent.attach(model, optimizer):
        step()
        observers[0](0, 2**31, 2**34, 2**20)
        step()
        step()
    observers[0](0, 2**31, 2**34, 2**20)  # without a listener
    result = recording()
    (event,) = result.events
    assert (event.kind, event.step) == ("oom_survived", 2)
    assert event.data == {"phase": "data", "asked_bytes": 2**31, "free_bytes": 2**20}
    assert result.finish.status == "completed"


def test_a_kill_loses_at_most_the_last_samples(run_script, recording):
    process = run_script(
        "import time, os, signal\nfor _ in range(100): step()\ntime.sleep(2.5)\nos.kill(os.getpid(), signal.SIGKILL)"
    )
    assert process.returncode == -9
    assert recording().columns()["step"] == list(range(101)) and recording().finish is None


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_forked_child_sends_nothing_and_the_parent_continues(run_script, recording):
    process = run_script(
        """
        import os
        step()
        child = os.fork()
        if child == 0:
            step()
            run.log({"child": 1.0})
            raise SystemExit(0)
        os.waitpid(child, 0)
        step()
        """
    )
    assert process.returncode == 0, process.stderr
    assert recording().columns()["step"] == [0, 1, 2] and "child" not in recording().columns(
        "scalars"
    )


def test_data_loader_workers_do_not_affect_the_run(run_script, recording):
    process = run_script(
        """
        from torch.utils.data import DataLoader
        for batch in DataLoader(torch.randn(64, 16), batch_size=8, num_workers=2):
            model(batch).sum().backward(); optimizer.step()
        """
    )
    assert process.returncode == 0, process.stderr
    assert (
        recording().columns()["step"] == list(range(9)) and recording().finish.status == "completed"
    )


def test_agent_errors_are_contained_counted_and_logged_once(
    training, recording, monkeypatch, caplog
):
    monkeypatch.setenv("MEMAGENT_RAISE", "0")
    model, optimizer, step = training
    run = memagent.attach(model, optimizer)
    monkeypatch.setattr(Sampler, "end_step", lambda _: 1 / 0)
    for _ in range(5):
        step()
    run.finish()
    assert run.guard.errors["after step"] == 5
    assert [
        record.message.startswith("memagent failed in after step") for record in caplog.records
    ] == [True]
    assert recording().finish.status == "completed"


def test_the_same_errors_are_raised_in_tests(training, monkeypatch):
    model, optimizer, step = training
    run = memagent.attach(model, optimizer)
    monkeypatch.setattr(Sampler, "end_step", lambda _: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        step()
    run.finish()


def test_a_disk_that_cannot_be_written_does_not_stop_the_training(
    training, clean_settings, monkeypatch, capsys
):
    clean_settings.parent.joinpath("runs").write_text("a file where the folder should be")
    model, optimizer, step = training
    run = memagent.attach(model, optimizer)
    for _ in range(3):
        step()
    run.finish()
    assert run.drops["not_delivered_at_exit"] == 4
    assert "memagent: cannot write " in capsys.readouterr().err


def test_on_risk_is_called_on_the_training_thread_before_the_run_dies(run_script, recording):
    # In a process of its own, whose memory grows for no other reason. A MiB a step: the limit is
    # 800 steps away, beyond the fifth of the plan (400 steps) in which growth may end with a first
    # epoch.
    process = run_script(
        """
        import json, threading, time
        for _ in range(10): step()
        used = run._pipeline.sampler.tracks[-1].probe.used_bytes()
        run.finish()
        risks, retained = [], []
        def on_risk(risk):
            risks.append((risk.level, risk.limit_bytes, risk.eta_step, threading.get_ident()))
        limit = used + 800 * 2**20
        run = memagent.attach(
            model, optimizer, limit_bytes=limit, total_steps=2000, on_risk=on_risk, predict=False
        )
        for number in range(700):
            retained.append(torch.ones(2**18))
            step()
            time.sleep(0.005 if number < 420 else 0.02)
            if risks: break
        run.finish()
        print(json.dumps([*risks[0], limit, run.step, threading.get_ident()]))
        """
    )
    assert process.returncode == 0, process.stderr
    level, limit, eta_step, thread, expected_limit, step, own_thread = json.loads(process.stdout)
    assert level in ("warning", "critical") and limit == expected_limit and thread == own_thread
    assert step < eta_step < 3 * 800


def test_a_callback_that_fails_does_not_stop_the_training(training, monkeypatch, caplog):
    monkeypatch.setenv("MEMAGENT_RAISE", "0")
    model, optimizer, step = training

    def on_risk(risk):
        raise RuntimeError("mine")

    run = memagent.attach(model, optimizer, on_risk=on_risk)
    run._pipeline.forecast._pending_risks.append(memagent.Risk(level="warning"))
    step()
    run.finish()
    assert run.guard.errors["on_risk"] == 1 and run.step == 1


def test_an_alert_is_recorded_and_printed_without_a_server(training, recording, capfd):
    model, optimizer, step = training
    run = memagent.attach(model, optimizer)
    step()
    for _ in range(3):
        run.alert("Loss is NaN", "at lr 1e-3")
    run.finish()
    alerts = [event for event in recording().events if event.kind == "alert"]
    assert [(event.step, event.data["title"]) for event in alerts] == [(1, "Loss is NaN")]
    assert capfd.readouterr().err.count("warning at step 1: Loss is NaN: at lr 1e-3") == 1


def test_a_wrong_alert_is_reported_and_stops_nothing(training, monkeypatch, capfd):
    monkeypatch.setenv("MEMAGENT_RAISE", "0")
    model, optimizer, step = training
    run = memagent.attach(model, optimizer)
    run.alert("Loss is NaN", level="fatal")
    step()
    run.finish()
    assert run.step == 1
    assert "run.alert() got level='fatal': use note, warning, critical." in capfd.readouterr().err
