"""Train on two ranks that join one run. On two GPUs use the backend "nccl".

torchrun --standalone --nproc-per-node 2 examples/distributed.py          # DDP
torchrun --standalone --nproc-per-node 2 examples/distributed.py fsdp2    # sharded
"""

import sys

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import memagent

dist.init_process_group("gloo")
model = torch.nn.Sequential(torch.nn.Linear(256, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 1))
if sys.argv[1:] == ["fsdp2"]:
    fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
else:
    model = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

with memagent.attach(model, optimizer, project="examples", total_steps=20):
    for _ in range(20):
        model(torch.randn(32, 256)).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
dist.destroy_process_group()
