import asyncio

import torch
from torch import nn

model = nn.Sequential(nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 8))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)


def train_step(loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


background = set()


async def evaluate(batch):
    await asyncio.sleep(0)
    return model(batch).mean().item()


async def main():
    for step in range(70):
        batch = torch.randn(256, 128)
        train_step(model(batch).square().mean())
        task = asyncio.create_task(evaluate(batch))
        background.add(task)
        task.add_done_callback(background.discard)
        await asyncio.sleep(0)
        await asyncio.sleep(0)


asyncio.run(main())
