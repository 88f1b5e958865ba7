"""One rank of several, for the zoo. Sharded models run on torch's fake process group, which sends
nothing; the rank allocates what a real one would.

DDP's reducer needs a group that answers: its real runs use gloo with a single rank, whose buckets
are the same.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import distributed, nn

from benchmarks.estimator.workload import Case
from memagent.estimator.model_edits import repeated_blocks

RANKS = 2


def start_fake_group() -> None:
    """Start the fake group for traces and sharded models, once per process and outside any fake
    mode.
    """
    from torch.testing._internal.distributed.fake_pg import FakeStore

    if not distributed.is_initialized():
        distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=RANKS)


def start_alone() -> None:
    """Start gloo for a real DDP run."""
    if not distributed.is_initialized():
        distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)


def mesh(device: str) -> Any:
    """Return the device mesh of the fake group, always the same one."""
    from torch.distributed.device_mesh import init_device_mesh

    start_fake_group()
    if device not in _meshes:
        _meshes[device] = init_device_mesh(device, (RANKS,))
    return _meshes[device]


_meshes: dict[str, Any] = {}


def spread(model: nn.Module, case: Case, device: str) -> nn.Module:
    """Return the model as one rank holds it: in DDP, or with FSDP2 around each repeated block and
    around the whole.
    """
    if case.parallel == "none":
        return model
    if case.parallel.startswith("ddp"):
        start_alone()
        return nn.parallel.DistributedDataParallel(
            model, gradient_as_bucket_view=case.parallel == "ddp_views"
        )
    from torch.distributed.fsdp import fully_shard

    where = mesh(device)
    for block in repeated_blocks(model):
        fully_shard(block, mesh=where)
    return fully_shard(model, mesh=where)


def device_type(device: str | torch.device | None) -> str:
    """Return the device type of the mesh."""
    if device is None:
        return torch.get_default_device().type
    return "cpu" if device == "meta" else str(device).partition(":")[0]
