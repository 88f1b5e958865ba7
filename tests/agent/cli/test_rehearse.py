"""`memagent rehearse`, with the interpreter of a CUDA build of torch; no GPU is needed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from memagent.errors import RehearsalError
from memagent.rehearsal.api import current_folder
from tests.snippets import ROOT, blocks
from tests.waiting import wait_until

MANUAL = ROOT / "docs" / "rehearsal.md"
SCRIPT = """
import argparse, sys
import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--width", type=int, default=512)
parser.add_argument("--mode", default="train")
arguments = parser.parse_args()
model = nn.Sequential(nn.Linear(arguments.width, arguments.width), nn.ReLU(), nn.Linear(arguments.width, 10)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for step in range(1000):
    x = torch.randn(64, arguments.width, device="cuda")
    loss = nn.functional.cross_entropy(model(x), torch.randint(0, 10, (64,), device="cuda"))
    if arguments.mode == "idle":
        sys.exit()
    loss.backward()
    if arguments.mode == "by hand":
        with torch.no_grad():
            model[0].weight -= 0.1 * model[0].weight.grad
        sys.exit()
    optimizer.step()
    optimizer.zero_grad()
    torch.save(model.state_dict(), "model.pt")
    if arguments.mode == "fail" and step == 1:
        raise ValueError("no such column")
    while arguments.mode == "wait" and loss.item() >= 0:
        pass
    if arguments.mode == "sleep":
        print("sleeping", flush=True)
        import time
        time.sleep(600)
"""
SHARDED = """
import os
import torch
from torch import distributed, nn
from torch.distributed.fsdp import fully_shard

distributed.init_process_group()
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
model = nn.Sequential(*(nn.Linear(2048, 2048) for _ in range(8))).cuda()
for layer in model:
    fully_shard(layer)
fully_shard(model)
nn.init.normal_(model[0].weight)
optimizer = torch.optim.AdamW(model.parameters())
for step in range(1000):
    loss = model(torch.randn(64, 2048, device="cuda")).sum()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    distributed.all_reduce(loss.detach())
    answers = [None] * distributed.get_world_size()
    distributed.all_gather_object(answers, {"rank": distributed.get_rank()})
    print(distributed.get_rank(), "of", distributed.get_world_size(), end=", ")
    print("with", len([answer for answer in answers if answer]), "answers")
"""
BATCHED = """
import argparse
import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int)
batch = parser.parse_args().batch_size
model = nn.Sequential(nn.Linear(1024, 1024), nn.GELU(), nn.Linear(1024, 1024)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for step in range(1000):
    model(torch.randn(16 * batch, 1024, 1024, device="cuda")).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
BLOCKS = """
import torch
from torch import nn

layer = nn.TransformerEncoderLayer(256, 4, 1024, batch_first=True, device="cuda")
model = nn.TransformerEncoder(layer, 4)
optimizer = torch.optim.AdamW(model.parameters())
for step in range(1000):
    optimizer.zero_grad(set_to_none=False)
    model(torch.randn(8, 512, 256, device="cuda")).float().square().mean().backward()
    optimizer.step()
"""
CHECKPOINTING = """
import json
import memagent
from memagent.rehearsal import build
from memagent.rehearsal.api import run_in_sandbox
from memagent.rehearsal.launch import cuda_card
from memagent.rehearsal.launch import Machine
from memagent.rehearsal.script import Script

device = build.prepare(build.torch_folder())
now = memagent.rehearse("blocks.py", ["--width", 256], gpu="t4", steps=2)
script = Script("blocks.py", steps=2, change="checkpointing")
then = run_in_sandbox(script, device, Machine(cuda_card("t4")), lambda _: None)
print(json.dumps([now.to_dict(), then.to_dict()]))
"""
AGENT = str(Path(__file__).parents[3] / "agent")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the script and a checkpoint that it overwrites."""
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "model.pt").write_bytes(b"k" * 300_000)
    return tmp_path


def environment(folder: Path) -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith("MEMAGENT_")}
    cache = folder.parent / "cache"  # of all tests of a worker: it holds what is compiled
    return {**kept, "PYTHONPATH": AGENT, "XDG_CACHE_HOME": str(cache), "TMPDIR": str(folder.parent)}


def command(python: Path, *words: str) -> list[str]:
    return [str(python), "-m", "memagent", "rehearse", *words]


@pytest.fixture
def rehearse_verb(cuda_python: Path, folder: Path):
    """Run the verb, and return its result, report and exit status."""

    def run(*words: str, gpu: str = "a100") -> tuple[subprocess.CompletedProcess[str], dict]:
        options = ("--gpu", gpu, "--report", str(folder / "report.json"))
        ended = subprocess.run(
            command(cuda_python, *options, *words),
            cwd=folder, env=environment(folder), capture_output=True, text=True, timeout=280,
        )  # fmt: skip
        path = folder / "report.json"
        assert not list(folder.parent.glob("memagent-rehearsal-*"))
        return ended, json.loads(path.read_text()) if path.exists() else {}

    return run


def test_it_says_that_a_script_fits_and_leaves_its_files(rehearse_verb, folder: Path) -> None:
    ended, report = rehearse_verb("train.py", "--width", "1024")
    assert ended.returncode == 0, ended.stderr
    assert "fits, with 78" in ended.stdout
    assert report["fits"] and report["status"] == "stopped"
    parameters = 4 * (1024 * 1024 + 1024 + 10 * 1024 + 10)
    assert report["components"]["parameters"] == pytest.approx(parameters, rel=0.01)
    assert set(report["phases"]) >= {"forward", "backward", "optimizer"}
    assert report["peak_allocated_bytes"] == max(report["phases"].values())
    assert [item["file"] for item in report["files"]] == ["model.pt"]
    assert (folder / "model.pt").read_bytes() == b"k" * 300_000


def test_it_says_where_memory_runs_out(rehearse_verb) -> None:
    ended, report = rehearse_verb("train.py", "--width", "8192", gpu="own:1500MiB")
    assert ended.returncode == 1
    assert report["fits"] is False
    assert report["error"]["file"].endswith("train.py")
    assert report["error"]["message"].startswith("CUDA out of memory. Tried to allocate")
    assert f"step 1, at {report['error']['file']}, line" in ended.stdout


def test_a_loop_that_waits_for_a_value_is_ended(rehearse_verb) -> None:
    ended, report = rehearse_verb("train.py", "--mode", "wait")
    assert (ended.returncode, report["status"]) == (1, "waiting")
    assert "waits at" in ended.stdout


def test_a_script_that_never_steps_has_no_verdict(rehearse_verb) -> None:
    ended, report = rehearse_verb("train.py", "--mode", "idle")
    assert (ended.returncode, report["fits"]) == (1, None)
    assert "The script made no optimizer step" in ended.stderr


def test_a_script_that_updates_by_hand_runs_to_its_end(rehearse_verb) -> None:
    ended, report = rehearse_verb("train.py", "--mode", "by hand")
    assert (ended.returncode, report["fits"], report["status"]) == (0, True, "completed")


def test_an_error_of_the_script_is_reported(rehearse_verb) -> None:
    ended, report = rehearse_verb("--steps", "5", "train.py", "--mode", "fail")
    assert (ended.returncode, report["status"]) == (1, "failed")
    assert report["error"]["message"] == "ValueError: no such column"
    assert "ValueError: no such column" in ended.stderr


def test_one_rank_of_eight_holds_an_eighth(rehearse_verb, folder: Path) -> None:
    (folder / "sharded.py").write_text(SHARDED)
    ended, report = rehearse_verb("--gpus", "8", "--ranks", "8", "sharded.py", gpu="h100")
    assert ended.returncode == 0, ended.stderr
    assert report["components"]["parameters"] == pytest.approx(8 * 4 * 2048 * 2049 / 8, rel=0.01)
    assert "0 of 8, with 8 answers" in ended.stdout
    assert report["nccl_bytes"]["middle"] in (688 << 20, 2 * 688 << 20)
    assert "NCCL's buffers" in ended.stdout


def test_a_budget_is_checked(rehearse_verb) -> None:
    ended, _ = rehearse_verb("--fail-over", "1MiB", "train.py")
    assert ended.returncode == 1
    assert "exceeds the budget of 1.0 MiB" in ended.stderr


def test_it_finds_the_largest_batch(rehearse_verb, folder: Path) -> None:
    (folder / "batched.py").write_text(BATCHED)
    options = ("--steps", "2", "--find-batch", "batch-size")
    ended, report = rehearse_verb(*options, "batched.py", "--batch-size", "2", gpu="own:2GiB")
    assert ended.returncode == 0, ended.stderr
    batch = report["batch"]
    assert batch["is_complete"] and batch["too_large"] - batch["largest"] == 1
    assert report["fits"] and f"largest batch      {batch['largest']}" in ended.stdout
    too_large = next(one for one in batch["tried"] if one["batch"] == batch["too_large"])
    assert (too_large["fits"], too_large["status"]) == (False, "oom")


def test_python_rehearses_a_script_and_checkpointing_of_it(cuda_python: Path, folder: Path) -> None:
    (folder / "blocks.py").write_text(BLOCKS)
    ended = subprocess.run(
        [str(cuda_python), "-c", CHECKPOINTING],
        cwd=folder, env=environment(folder), capture_output=True, text=True, timeout=280,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    now, then = json.loads(ended.stdout)
    assert then["peak_allocated_bytes"] < 0.6 * now["peak_allocated_bytes"]
    assert now["fits"] and (now["steps"], now["gpu"]) == (2, "Tesla T4")
    assert now["spare_bytes"] == now["capacity_bytes"] - now["peak_device_bytes"]["middle"] > 0
    assert now["phases"].keys() >= {"forward", "backward", "optimizer"}
    assert now["peak_allocated_bytes"] == max(now["phases"].values())


@pytest.fixture
def sleeping(cuda_python: Path, folder: Path):
    """Start a command whose script sleeps after a step."""

    def start(*words: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [str(cuda_python), *words], cwd=folder, env=environment(folder), text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        assert process.stdout is not None
        assert process.stdout.readline() == "sleeping\n"
        return process

    return start


VERB = ("-m", "memagent", "rehearse", "--gpu", "a100", "train.py", "--mode", "sleep")
CALL = ("-c", "import memagent; memagent.rehearse('train.py', ['--mode', 'sleep'], gpu='a100')")


def test_an_interrupt_gives_what_is_known(sleeping, folder: Path) -> None:
    process = sleeping(*VERB)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate()
    assert "no verdict: interrupted, after 1 steps; up to there" in output
    assert "held" in output  # from the end of the script's process, which was interrupted, too
    assert process.returncode == 1
    assert not list(folder.parent.glob("memagent-rehearsal-*"))


@pytest.mark.parametrize(("words", "number"), [(VERB, signal.SIGTERM), (CALL, signal.SIGKILL)])
def test_nothing_is_left_after_a_signal(
    sleeping, folder: Path, words: tuple[str, ...], number: int
) -> None:
    process = sleeping(*words)
    process.send_signal(number)
    process.communicate()  # until the script's process has ended, too
    assert process.returncode == -number
    gone = lambda: not list(folder.parent.glob("memagent-rehearsal-*"))  # noqa: E731
    wait_until(gone, "the removal of the copy")


def test_the_manual_shows_what_the_verb_prints(cuda_python: Path, tmp_path: Path) -> None:
    (script,) = blocks(MANUAL, "python")
    (tmp_path / "train.py").write_text(script.text)
    (session,) = blocks(MANUAL, "console")
    line, *expected = session.text.splitlines()
    words = line.removeprefix("$ memagent rehearse ").split()
    ended = subprocess.run(
        command(cuda_python, *words),
        cwd=tmp_path, env=environment(tmp_path), capture_output=True, text=True, timeout=280,
    )  # fmt: skip
    assert without_host(ended.stdout.splitlines()) == without_host(expected)


def without_host(lines: list[str]) -> list[str]:
    """Drop the line of the host's memory, which depends on the machine."""
    return [line for line in lines if not line.startswith("  host memory")]


def test_a_report_without_a_folder_is_refused_at_once(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    words = ("--gpu", "a100", "--report", "missing/report.json", "train.py")
    ended = subprocess.run(
        command(Path(sys.executable), *words),
        cwd=tmp_path, env=environment(tmp_path), capture_output=True, text=True,
    )  # fmt: skip
    assert ended.returncode == 2
    assert "--report missing/report.json cannot be written: there is no such folder" in ended.stderr


def test_a_folder_that_is_gone_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(RehearsalError, match="has been removed"):
        current_folder()


def test_a_build_without_cuda_is_named(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    ended = subprocess.run(
        command(Path(sys.executable), "--gpu", "a100", "train.py"),
        cwd=tmp_path, env=environment(tmp_path), capture_output=True, text=True,
    )  # fmt: skip
    import torch

    if torch.version.cuda is None:
        assert ended.returncode == 1
        (line,) = ended.stderr.splitlines()
        assert "needs" in line
