"""Training inside an asyncio program; results are uploaded by tasks while training goes on.

As in: python/cpython#85865; ha-life360#101.
"""

import argparse
import asyncio
import zlib

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


class Uploader:
    """Fire and forget, but keep a reference: the loop itself only has weak ones."""

    def __init__(self):
        self.tasks = {}
        self.sent = 0

    async def _upload(self, step, payload):
        checksum = zlib.crc32(payload)
        await asyncio.sleep(0)
        self.sent += len(payload)
        return {"step": step, "checksum": checksum, "body": payload}

    def upload(self, step, array):
        payload = array.tobytes()
        self.tasks[step] = asyncio.get_running_loop().create_task(
            self._upload(step, payload)
        )  # LEAK any tasks


class Critic(nn.Module):
    def __init__(self, inputs=96, width=352):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(inputs, width),
            nn.ReLU(),
            nn.Linear(width, width),
            nn.ReLU(),
            nn.Linear(width, 1),
        )

    def forward(self, x):
        return self.net(x).squeeze(1)


async def train(steps):
    generator = torch.Generator().manual_seed(31)
    model, uploader = Critic(), Uploader()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for step in range(steps):
        x = torch.randn(192, 96, generator=generator)
        value = x[:, :4].prod(1).tanh()
        loss = F.smooth_l1_loss(model(x), value)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        uploader.upload(step, np.concatenate([x.numpy(), x.numpy() ** 2], axis=1))
        await asyncio.sleep(0)
        if step % 100 == 0:
            print(f"step {step} loss {loss.item():.4f} sent {uploader.sent >> 20} MiB", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=1000)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    asyncio.run(train(args.steps))


if __name__ == "__main__":
    main()
