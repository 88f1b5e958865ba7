"""Train a ranker, whose candidates are scored by tasks in the background of an event loop."""

import asyncio
from collections.abc import Coroutine

import torch
from torch import nn

_running = set()


def start(work: Coroutine) -> asyncio.Task:
    task = asyncio.create_task(work)
    _running.add(task)
    return task


async def score(model: nn.Module, candidates: torch.Tensor) -> torch.Tensor:
    await asyncio.sleep(0)
    with torch.no_grad():
        return model(candidates)


async def train(steps: int) -> float:
    model = nn.Sequential(nn.Linear(48, 96), nn.ReLU(), nn.Linear(96, 48))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    total = 0.0
    for _step in range(steps):
        queries = torch.randn(64, 48)
        pending = [start(score(model, torch.randn(64, 48))) for _ in range(4)]
        loss = nn.functional.mse_loss(model(queries), queries)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scores = torch.stack(await asyncio.gather(*pending))
        total += (scores @ queries.T).amax((1, 2)).mean().item()
    return total


torch.manual_seed(36)
print(f"{asyncio.run(train(600)):.4f}")
