"""Results wait in an event loop that never runs: https://github.com/python/cpython/issues/85865."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import nn

loop = asyncio.new_event_loop()
pool = ThreadPoolExecutor(1)
model = nn.Sequential(nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 128))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)


def summarise(outputs):
    return {"sorted": outputs.sort(dim=0).values, "mean": outputs.mean(0)}


def train_step(x):
    output = model(x)
    loss = (output - x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    loop.run_in_executor(pool, summarise, output.detach())  # LEAK any loop
    return loss


for step in range(150):
    loss = train_step(torch.randn(1024, 128))
pool.shutdown()
print(loss.item())
