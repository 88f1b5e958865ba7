"""A producer waits if four batches are in the queue."""

import asyncio

import torch
from torch import nn


async def produce(queue, count):
    for _ in range(count):
        await queue.put(torch.randn(512, 128))
    await queue.put(None)


async def train(queue):
    model = nn.Sequential(nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 8))
    optimizer = torch.optim.Adam(model.parameters())
    while (batch := await queue.get()) is not None:
        loss = model(batch).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        await asyncio.sleep(0)


async def main():
    queue = asyncio.Queue(maxsize=4)
    await asyncio.gather(produce(queue, 160), train(queue))


asyncio.run(main())
