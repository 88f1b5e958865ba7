"""Command, versions and variables of the process."""

from __future__ import annotations

import sys
from typing import Any

import torch

from memagent.record import describe_process, process
from memagent.record.process import describe_job, relevant_variables
from memagent.wire.codec import encode

MASK = "***"
HF = "hf_" + "a1B2c3D4" * 4


def test_versions_and_command_are_recorded(monkeypatch):
    monkeypatch.setattr(sys, "orig_argv", ["python", "train.py", "--hf_token", "abc", "--lr=3"])
    facts = describe_process({})
    assert facts["command"] == "python train.py --hf_token '***' --lr=3"
    assert facts["torch"] == torch.__version__
    assert facts["python"].startswith(f"{sys.version_info.major}.{sys.version_info.minor}")
    encode(facts)


def test_describing_the_process_initialises_no_device(monkeypatch):
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("describing must not do this")

    monkeypatch.setattr(torch.cuda, "_lazy_init", refuse)
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    facts = describe_process({})
    assert facts["cuda"] == "12.8"
    assert "gpu" not in facts


def test_variables_that_matter_are_recorded_and_others_are_not():
    environ = {
        "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
        "PYTORCH_ALLOC_CONF": "x:1",
        "NCCL_DEBUG": "INFO",
        "WORLD_SIZE": "8",
        "SLURM_JOB_ID": "7",
        "OMP_NUM_THREADS": "4",
        "LD_PRELOAD": "/lib/jemalloc.so",
        "CUDA_VISIBLE_DEVICES": "0,1",
    }
    others = {"HOME": "/root", "HF_TOKEN": HF, "WANDB_API_KEY": "abc", "EDITOR": "vi"}
    assert relevant_variables(environ | others) == environ
    assert relevant_variables({"ACCELERATE_TOKEN": "abc"}) == {"ACCELERATE_TOKEN": MASK}
    assert len(relevant_variables({f"NCCL_{number}": "x" * 5000 for number in range(500)})) == 100


def test_a_pod_and_a_slurm_job_are_named(monkeypatch, tmp_path):
    monkeypatch.setattr(process, "host_name", lambda: "train-0")
    (tmp_path / "namespace").write_text("research\n")
    monkeypatch.setattr(process, "_NAMESPACE_FILE", str(tmp_path / "namespace"))
    pod = {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}
    assert describe_job(pod) == {"pod": "train-0", "namespace": "research"}
    told = {"POD_NAME": "train-0-x", "POD_NAMESPACE": "team", "NODE_NAME": "gpu-7"}
    assert describe_job(pod | told) == {"pod": "train-0-x", "namespace": "team", "node": "gpu-7"}
    slurm = {"SLURM_JOB_ID": "4711", "SLURMD_NODENAME": "n12"}
    assert describe_job(slurm) == {"node": "n12", "slurm_job_id": "4711"}
    assert describe_job({}) == {} and len(describe_job({"NODE_NAME": "x" * 10**6})["node"]) < 300


def test_a_cpu_training_never_initializes_cuda(monkeypatch):
    """After cuDNN's version or a device's name was read, the process can't fork safely."""
    import torch

    calls = []
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    for owner, name in (
        (torch.backends.cudnn, "version"),
        (torch.cuda.nccl, "version"),
        (torch.cuda, "device_count"),
        (torch.cuda, "get_device_name"),
    ):
        monkeypatch.setattr(owner, name, lambda *_arguments, name=name: calls.append(name))
    facts = describe_process({})
    assert facts["cuda"] == "12.8" and calls == []
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    describe_process({})
    assert len(calls) == 4
