"""DistributedDataParallel on gloo with a communication hook that averages in the background.

As in: pytorch/pytorch#116923.
"""

import argparse
import os
import tempfile

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel


class HookState:
    def __init__(self, group):
        self.group = group
        self.works = []
        self.bytes = 0


def half_precision_hook(state, bucket):
    """Send gradients as bfloat16 and hand back the average."""
    buffer = bucket.buffer()
    compressed = buffer.to(torch.bfloat16).float()
    compressed.div_(dist.get_world_size(state.group))
    work = dist.all_reduce(compressed, group=state.group, async_op=True)
    state.works.append(work)  # LEAK any works
    state.bytes += compressed.numel() * 2
    return work.get_future().then(lambda future: future.value()[0])


class Net(nn.Module):
    def __init__(self, width=320):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(200, width),
            nn.ReLU(),
            nn.Linear(width, width),
            nn.ReLU(),
            nn.Linear(width, 50),
        )

    def forward(self, x):
        return self.layers(x)


def setup():
    path = os.path.join(tempfile.mkdtemp(), "store")
    rank = int(os.environ.get("RANK", "0"))
    world = int(os.environ.get("WORLD_SIZE", "1"))
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=world)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=700)
    parser.add_argument("--batch", type=int, default=160)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    setup()
    state = HookState(dist.group.WORLD)
    model = DistributedDataParallel(Net())
    model.register_comm_hook(state, half_precision_hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    generator = torch.Generator().manual_seed(1)
    for step in range(args.steps):
        x = torch.randn(args.batch, 200, generator=generator)
        y = x[:, :50].argmax(1)
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        if step % 100 == 0:
            print(f"step {step} loss {loss.item():.3f} sent {state.bytes >> 20} MiB", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
