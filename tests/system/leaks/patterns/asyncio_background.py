"""Tasks that stay in a set: https://github.com/Tribler/py-ipv8/pull/702 has the same."""

import asyncio

import torch
from torch import nn

model = nn.Sequential(nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 8))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)


def train_step(loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


class Server:
    def __init__(self):
        self.background = set()

    def spawn(self, coroutine):
        task = asyncio.get_running_loop().create_task(coroutine)
        self.background.add(task)  # LEAK set Server.background
        return task

    async def predict(self, batch):
        return model(batch).detach().repeat(1, 16)

    async def run(self):
        for step in range(70):
            batch = torch.randn(512, 128)
            train_step(model(batch).square().mean())
            await self.spawn(self.predict(batch))


asyncio.run(Server().run())
