"""Checks of the doctor, on real environments and on recorded ones of machines with GPUs."""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace

import pytest

from memagent.cli import main
from memagent.delivery.api_client import ApiResponse
from memagent.doctor import CHECKS, configuration, data_dir, device, host, nvml, run_checks, server
from memagent.doctor.check import Environment, ok
from memagent.settings import Settings

GIB = 2**30
CPU = {
    "installed": True,
    "version": "2.9.0+cpu",
    "cuda": None,
    "hip": None,
    "devices": [],
    "others": [],
}
CUDA = {**CPU, "version": "2.9.0+cu128", "cuda": "12.8"}


def levels(findings) -> list[str]:
    return [finding.level for finding in findings]


def patient(**environ: str) -> Environment:
    return Environment(environ, configuration.usable_settings(environ))


def test_a_check_that_raises_or_hangs_is_a_problem_and_the_others_run():
    never = threading.Event()

    def raises(_):
        yield ok("before")
        raise ZeroDivisionError("oh")

    def hangs(_):
        never.wait()
        yield ok("never")

    result = run_checks(
        {}, checks={"a": raises, "b": hangs, "c": lambda _: iter([ok("fine")])}, deadline_s=0.2
    )
    never.set()
    assert levels(result["b"]) == ["warning"] and "no result within" in result["b"][0].text
    assert "ZeroDivisionError: oh" in result["a"][-1].text
    assert result["c"] == [ok("fine")]


def test_every_invalid_setting_is_named_and_the_others_apply():
    findings = list(
        configuration.check(patient(MEMAGENT_EVRY="3", MEMAGENT_EVERY="x", MEMAGENT_PROJECT="mine"))
    )
    assert levels(findings) == ["problem", "problem"]
    assert "did you mean MEMAGENT_EVERY" in findings[0].text
    assert (
        configuration.usable_settings({"MEMAGENT_EVERY": "x", "MEMAGENT_PROJECT": "mine"}).project
        == "mine"
    )


def test_addresses_that_kubernetes_gives_of_a_service_are_no_settings():
    (finding,) = configuration.check(patient(MEMAGENT_SERVICE_HOST="10.0.0.1"))
    assert finding == ok("settings: none set, using defaults")


def test_a_secret_is_never_shown():
    assert "hunter2" not in str(list(configuration.check(patient(MEMAGENT_TOKEN="hunter2"))))


@pytest.mark.parametrize(
    ("facts", "has_driver", "environ", "expected", "text"),
    [
        ({"installed": False}, False, {}, ["warning"], "not installed"),
        (CPU, False, {}, ["ok"], "build for the CPU"),
        (CPU, True, {}, ["problem"], "has an NVIDIA driver"),
        (CUDA, False, {}, ["warning"], "no driver"),
        ({**CUDA, "error": "driver is too old"}, True, {}, ["problem"], "driver is too old"),
        (CUDA, True, {"CUDA_VISIBLE_DEVICES": ""}, ["warning"], "hides every GPU"),
        ({**CUDA, "devices": [["NVIDIA A100", 80 * GIB]]}, True, {}, ["ok", "ok"], "CUDA 12.8"),
        ({**CPU, "others": ["mps"]}, False, {}, ["ok"], "device mps"),
        ({**CPU, "version": "1.13.1"}, False, {}, ["problem", "ok"], "too old"),
    ],
)
def test_torch_is_judged_by_its_build_and_the_driver(facts, has_driver, environ, expected, text):
    findings = list(device.judge(facts, has_driver=has_driver, environ=environ))
    assert levels(findings) == expected
    assert text in findings[0].text
    assert all(finding.advice for finding in findings if finding.level != "ok")


def test_the_installed_torch_is_reported():
    (first, *_) = device.check(Environment(dict(os.environ), Settings()))
    assert first.text.startswith("torch ")


def test_a_torch_that_cannot_be_imported_is_a_problem(tmp_path: Path):
    (tmp_path / "torch.py").write_text(
        "raise ImportError('libcudart.so.12: cannot open shared object file')"
    )
    (finding,) = device.check(Environment({**os.environ, "PYTHONPATH": str(tmp_path)}, Settings()))
    assert finding.level == "problem" and "libcudart.so.12" in finding.text


def test_the_wrong_pynvml_is_a_problem_and_a_missing_driver_is_not(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", type(sys)("pynvml"))
    (finding,) = nvml.check(patient())
    assert finding.level == "problem" and "nvidia-ml-py" in finding.advice
    assert nvml.judge_missing("NVML Shared Library Not Found", has_driver=False).level == "ok"
    assert nvml.judge_missing("NVML Shared Library Not Found", has_driver=True).level == "warning"


def test_an_unreadable_device_is_a_warning_and_a_slice_is_named(monkeypatch):
    nvml_error = type("NVMLError", (Exception,), {})

    def name_of(handle):
        if handle == 1:
            raise nvml_error("Insufficient Permissions")
        return "NVIDIA H100"

    library = SimpleNamespace(
        NVMLError=nvml_error,
        nvmlSystemGetDriverVersion=lambda: b"550.54",
        nvmlDeviceGetCount=lambda: 2,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetName=name_of,
        nvmlDeviceGetMemoryInfo=lambda _: SimpleNamespace(used=GIB, total=80 * GIB),
        nvmlDeviceGetMigMode=lambda _: (1, 1),
        nvmlShutdown=lambda: None,
    )
    monkeypatch.setattr(nvml, "init_nvml", lambda: library)
    driver, sliced, refused = nvml.check(patient())
    assert (
        "550.54" in driver.text and "1.00 GiB of 80.00 GiB" in sliced.text and "MIG" in sliced.text
    )
    assert refused.level == "warning" and "Insufficient Permissions" in refused.text


def test_host_memory_is_judged_by_its_smallest_limit():
    assert levels([host.judge(size, "") for size in (GIB // 4, GIB, 8 * GIB)]) == [
        "problem",
        "warning",
        "ok",
    ]
    assert list(host.check(patient(MEMAGENT_LIMIT_BYTES="1GiB")))[-1].text.startswith(
        "MEMAGENT_LIMIT_BYTES: 1.00 GiB"
    )


def test_an_unwritable_folder_is_a_problem_and_none_is_created(tmp_path: Path):
    (tmp_path / "file").write_text("")
    findings = list(data_dir.check(patient(MEMAGENT_DIR=str(tmp_path / "file" / "runs"))))
    assert levels(findings) == ["problem"]
    assert data_dir.judge_space(tmp_path, 10).level == "problem"
    list(data_dir.check(patient(MEMAGENT_DIR=str(tmp_path / "new"))))
    assert not (tmp_path / "new").exists()


def test_files_to_upload_are_a_warning_if_a_server_is_set(tmp_path: Path, training):
    import memagent

    model, optimizer, step = training
    with memagent.attach(model, optimizer):
        step()
        busy = list(data_dir.check(patient(MEMAGENT_DIR=os.environ["MEMAGENT_DIR"])))
    findings = list(data_dir.check(patient(MEMAGENT_DIR=os.environ["MEMAGENT_DIR"])))
    waiting = list(
        data_dir.check(
            patient(MEMAGENT_DIR=os.environ["MEMAGENT_DIR"], MEMAGENT_SERVER="http://127.0.0.1:1")
        )
    )
    assert (len(busy), levels(findings), levels(waiting)) == (1, ["ok", "ok"], ["ok", "warning"])
    assert waiting[1].advice == "memagent sync"


@pytest.fixture
def stranger():
    """A web server that is not memagent's."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(302)
            self.send_header("Location", "https://elsewhere.test/")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_):
            pass

    web = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=web.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{web.server_port}"
    web.shutdown()
    thread.join()
    web.server_close()


def test_another_server_is_a_problem(stranger):
    (finding,) = server.check(patient(MEMAGENT_SERVER=stranger))
    assert finding.level == "problem" and "https://elsewhere.test/" in finding.advice
    (finding,) = server.check(patient(MEMAGENT_SERVER=stranger.replace("http:", "https:")))
    assert finding.level == "problem" and "TLS failed" in finding.text


def test_a_refused_connection_and_an_unknown_host_are_distinguished():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        (finding,) = server.check(
            patient(MEMAGENT_SERVER=f"http://127.0.0.1:{free.getsockname()[1]}")
        )
    assert "refused" in finding.text
    (finding,) = server.check(patient(MEMAGENT_SERVER="http://no-such-host.invalid"))
    assert "unknown host name" in finding.text


@pytest.mark.parametrize(("ahead_s", "level"), [(0.0, "ok"), (-60.0, "warning"), (60.0, "warning")])
def test_a_clock_difference_is_a_warning(ahead_s, level):
    now = 1_800_000_000.0
    response = ApiResponse(
        200, {"date": formatdate(now, usegmt=True)}, b"", now + ahead_s, now + ahead_s + 0.1
    )
    (finding,) = server.judge_clock(response)
    assert finding.level == level
    assert ("ahead" in finding.text) == (ahead_s > 0)


@pytest.mark.parametrize(
    ("read", "post", "level", "text"),
    [
        (200, 400, "ok", "send runs and read them"),
        (403, 400, "ok", "not read them"),
        (200, 403, "problem", "may read runs, but not send"),
        (401, 401, "problem", "unknown or revoked"),
        (403, 403, "problem", "refused"),
    ],
)
def test_a_token_is_checked_by_its_scope(read, post, level, text):
    (finding,) = server.judge_access(
        ApiResponse(read, {}, b"", 0, 0), ApiResponse(post, {}, b"", 0, 0), has_token=True
    )
    assert finding.level == level and text in finding.text


def test_a_real_server_and_its_tokens(start_server):
    live = start_server(environ={"MEMAGENT_ADMIN_TOKEN": "the admin's token of some length"})
    address = {"MEMAGENT_SERVER": live.url}
    assert (
        levels(server.check(patient(**address, MEMAGENT_TOKEN="the admin's token of some length")))
        == ["ok"] * 3
    )
    assert levels(server.check(patient(**address, MEMAGENT_TOKEN="wrong"))) == [
        "ok",
        "ok",
        "problem",
    ]
    assert levels(server.check(patient(**address))) == ["ok", "ok", "problem"]
    assert (
        live.get("/api/v1/runs", authorization="Bearer the admin's token of some length").json[
            "runs"
        ]
        == []
    )


def test_the_command_prints_every_check_and_exits_with_1_for_a_problem(monkeypatch, capsys):
    assert main(["doctor"]) == 0
    assert "torch " in capsys.readouterr().out
    monkeypatch.setenv("MEMAGENT_EVERY", "x")
    assert main(["doctor", "--json"]) == 1
    output = json.loads(capsys.readouterr().out)
    assert output["problems"] == 1
    assert {one["check"] for one in output["findings"]} == set(CHECKS)
