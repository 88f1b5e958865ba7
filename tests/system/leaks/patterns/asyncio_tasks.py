import asyncio

import torch
from torch import nn

model = nn.Sequential(nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 8))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)


def train_step(loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


async def evaluate(batch):
    await asyncio.sleep(0)
    with torch.no_grad():
        return model(batch).repeat(1, 16)


async def main():
    tasks = []
    for step in range(70):
        batch = torch.randn(512, 128)
        train_step(model(batch).square().mean())
        tasks.append(asyncio.create_task(evaluate(batch)))  # LEAK list tasks
        await asyncio.sleep(0)


asyncio.run(main())
