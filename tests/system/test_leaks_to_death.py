"""A script that runs out of memory by its leak: every channel names the line."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

SCRIPT = """\
import resource
import torch

resource.setrlimit(resource.RLIMIT_DATA, (2**30, 2**30))
torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(256, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 64))
optimizer = torch.optim.AdamW(model.parameters())
outputs = []
while True:
    optimizer.zero_grad()
    output = model(torch.randn(256, 256))
    output.pow(2).mean().backward(retain_graph=True)
    optimizer.step()
    outputs.append(output)
"""
LINE = 1 + SCRIPT.splitlines().index("    outputs.append(output)")


@pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="the kernel keeps RLIMIT_DATA only on Linux"
)
@pytest.mark.long
def test_every_channel_names_the_leaking_line(live_server, tmp_path):
    terminal, report = _die(live_server.url, tmp_path)
    early, _, late = terminal.partition("Out of memory in ")
    assert f"suspect: leak.py:{LINE} in <module>: outputs: list of " in early
    assert f"suspect: leak.py:{LINE}: outputs: list of " in late
    assert (
        late.index("suspect: ")
        < late.index("Traceback")
        < late.index("memagent: out of memory in ")
    )

    assert report["status"] == "oom"
    first = report["suspects"][0]
    assert (first["file"], first["line"], first["kind"]) == ("leak.py", LINE, "list")
    assert first["holder"].startswith("outputs: list of ")
    assert first["bytes_per_step"] > 2**20 and 0.5 <= first["confidence"] <= 1

    body = live_server.get("/api/v1/runs/doomed/suspects").json["suspects"][0]
    assert {name: body[name] for name in first} == first
    events = live_server.get("/api/v1/runs/doomed").json["events"]
    [words] = [event["data"] for event in events if event["kind"] == "oom"]
    assert words["suspects"][0] == first

    fix = "outputs.append(x.detach().cpu())  # not: outputs.append(x)"
    page = live_server.get("/runs/doomed").body
    assert f"leak.py:{LINE}".encode() in page and fix.encode() in page
    assert "cause: leak, forecast since step " in late
    assert late.index("cause: ") < late.index(fix) < late.index("It happened in ")
    assert words["forecast"]["cause"] == report["out_of_memory"]["cause"] == "leak"
    assert report["out_of_memory"]["changes"][0]["code"].startswith(fix)
    assert "Without this growth, about " in late and "8-bit" not in late


def _die(server: str, folder) -> tuple[str, dict]:
    (folder / "leak.py").write_text(SCRIPT)
    environ = {
        "MEMAGENT_SERVER": server,
        "MEMAGENT_RUN_ID": "doomed",
        "MEMAGENT_DIR": str(folder / "runs"),
    }
    command = [sys.executable, "-m", "memagent", "run", "--report", "r.json", "leak.py"]
    done = subprocess.run(
        command,
        env={**os.environ, **environ},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 1, done.stderr
    return done.stderr, json.loads((folder / "r.json").read_text())
