import asyncio

import torch
from torch import nn

model = nn.Sequential(nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 8))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)


def train_step(loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


async def upload(batch, gate):
    await gate.wait()
    return batch.sum()


async def main():
    gate = asyncio.Event()
    for step in range(70):
        batch = torch.randn(512, 128)
        train_step(model(batch).square().mean())
        asyncio.ensure_future(upload(batch, gate))  # LEAK any upload
        await asyncio.sleep(0)
    gate.set()


asyncio.run(main())
