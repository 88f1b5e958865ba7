"""Two gloo ranks join one run on a real server without communicating."""

from __future__ import annotations

import inspect
import json

import pytest

from tests.agent.integrations.two_ranks import await_gloo

pytestmark = pytest.mark.xdist_group("distributed")

START = """
import os
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 8))
"""
LOOP = """
for number in range(6):
    model(torch.randn(16, 64)).pow(2).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
DDP = """
model = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.AdamW(model.parameters())
"""
FSDP2 = """
from torch.distributed.fsdp import fully_shard
from torch.distributed.device_mesh import init_device_mesh
mesh = init_device_mesh("cpu", (2,))
for layer in (model[0], model[2]):
    fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
optimizer = torch.optim.AdamW(model.parameters())
"""
ATTACH = """
import memagent
run = memagent.attach(model, optimizer, project="ranks")
"""
END = """
import json
columns = dict(zip(("parameters", "gradients", "optimizer_state", "buffers"), run._pipeline.sampler.tracks[0].components))
with open(f"rank{rank}.json", "w") as file:
    json.dump({"id": run.id, "step": run.step, **columns}, file)
run.finish()
dist.destroy_process_group()
"""
LEAVE = "dist.destroy_process_group()\n"
PARAMETERS_BYTES = 4 * (64 * 256 + 256 + 256 * 8 + 8)


def of_ranks(folder, name="rank{}.json"):
    return [json.loads((folder / name.format(rank)).read_text()) for rank in (0, 1)]


AWAIT_PREDICTION = """
import time
while run.prediction is None or (
    rank == 0 and run.prediction.method != "trace" and "trace" not in run.prediction.assumptions
):
    time.sleep(0.02)
with open(f"predicted{rank}.json", "w") as file:
    json.dump(run.prediction.to_dict(), file)
"""


@pytest.mark.parametrize(("wrapper", "share"), [(DDP, 1), (FSDP2, 2)], ids=["DDP", "FSDP2"])
def test_two_ranks_share_one_run_and_rank_0_is_traced(
    ranks_of, page_server, monkeypatch, tmp_path, wrapper, share
):
    monkeypatch.setenv("MEMAGENT_SERVER", page_server.url)
    ranks_of("import json" + START + wrapper + ATTACH + LOOP + AWAIT_PREDICTION + END)
    ranks = of_ranks(tmp_path)
    assert ranks[0]["id"] == ranks[1]["id"] and [rank["step"] for rank in ranks] == [6, 6]
    assert [rank["parameters"] for rank in ranks] == [PARAMETERS_BYTES // share] * 2, (
        "a rank holds its own shards"
    )
    for rank in ranks:
        assert rank["gradients"] == rank["parameters"]
        assert 2 * rank["parameters"] <= rank["optimizer_state"] <= 2 * rank["parameters"] + 64
    body = page_server.get(f"/api/v1/runs/{ranks[0]['id']}").json
    assert (body["project"], body["status"], body["world_size"]) == ("ranks", "completed", 2)
    assert sorted((stream["rank"], stream["last_step"]) for stream in body["streams"]) == [
        (0, 6),
        (1, 6),
    ]
    assert_the_first_is_traced(*of_ranks(tmp_path, "predicted{}.json"), is_sharded=share > 1)


def assert_the_first_is_traced(first, second, *, is_sharded):
    """With its buckets; a sharded model says why it is not."""
    assert (first["method"], second["method"]) == ("bound" if is_sharded else "trace", "bound")
    if is_sharded:
        assert "sharded" in first["assumptions"]["trace"]
    else:
        assert first["components"]["parameters"] == PARAMETERS_BYTES
        assert first["components"]["gradients"] == 2 * PARAMETERS_BYTES, (
            "DDP keeps buckets beside the gradients"
        )


def test_an_unchanged_sharded_script_is_counted_on_each_rank(ranks_of, tmp_path):
    report = str(tmp_path / "r.json")
    ranks_of(START + FSDP2 + LOOP + LEAVE, "-m", "memagent", "run", "--report", report)
    assert_both_counted(tmp_path)


@pytest.mark.slow
def test_memagent_run_around_torchrun_attaches_each_rank(memagent_around, tmp_path):
    """The only start of torchrun itself, which costs seven seconds of a processor."""
    script = START + DDP + LOOP + LEAVE + "import sys\nassert sys.argv[1:] == ['--lr', '3']\n"
    script += (
        f"import time\nfrom pathlib import Path\n{inspect.getsource(await_gloo)}await_gloo()\n"
    )
    memagent_around(script, "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    assert_both_counted(tmp_path)


@pytest.mark.slow
def test_memagent_run_around_accelerate_launch_attaches_the_script(memagent_around, tmp_path):
    pytest.importorskip("accelerate")
    plain = START.replace('dist.init_process_group("gloo")', "").replace(
        "rank = dist.get_rank()", ""
    )
    script = plain + "optimizer = torch.optim.AdamW(model.parameters())\n" + LOOP
    memagent_around(script, "accelerate.commands.launch", "--cpu", "--num_processes", "1", "--num_machines", "1",
                    "--mixed_precision", "no", "--dynamo_backend", "no", "--num_cpu_threads_per_process", "1")  # fmt: skip
    report = json.loads((tmp_path / "r.json").read_text())
    assert (report["status"], report["steps"]) == ("completed", 6)


@pytest.fixture
def ranks_of(two_ranks, tmp_path):
    """ranks_of(CODE, *before): run `before... train.py` on each rank."""

    def run(script, *before):
        (tmp_path / "train.py").write_text(script)
        two_ranks(*before, str(tmp_path / "train.py"))

    return run


@pytest.fixture
def memagent_around(fork_server, tmp_path):
    """Run `memagent run -m LAUNCHER OPTIONS train.py --lr 3` in the test's folder."""

    def run(script, *launcher):
        (tmp_path / "train.py").write_text(script)
        command = ["-m", "memagent", "run", "--report", "r.json", "-m", *launcher, "train.py"]
        process = fork_server.run(*command, "--lr", "3", cwd=tmp_path)
        assert process.returncode == 0, process.stderr
        assert "no optimizer" not in process.stderr and "RuntimeWarning" not in process.stderr

    return run


def assert_both_counted(folder):
    ranks = of_ranks(folder, "r.rank{}.json")
    assert len({rank["run_id"] for rank in ranks}) == 1
    assert [(rank["status"], rank["steps"], rank["samples"]) for rank in ranks] == [
        ("completed", 6, 7)
    ] * 2
