"""Reinforce answers by rewards of a service, whose requests have a deadline of an hour."""

import asyncio

import torch
from torch import nn


class Request:
    def __init__(self, answers: torch.Tensor) -> None:
        self.answers = answers
        self.rewards = asyncio.get_running_loop().create_future()

    def expire(self) -> None:
        if not self.rewards.done():
            self.rewards.set_exception(TimeoutError())


class RewardService:
    def __init__(self, deadline: float = 3600.0) -> None:
        self.deadline = deadline

    async def score(self, answers: torch.Tensor) -> torch.Tensor:
        loop = asyncio.get_running_loop()
        request = Request(answers)
        loop.call_later(self.deadline, request.expire)
        loop.call_soon(self.answer, request)
        return await request.rewards

    def answer(self, request: Request) -> None:
        request.rewards.set_result(torch.tanh(request.answers.mean(1)))


async def train(steps: int) -> float:
    service = RewardService()
    policy = nn.Sequential(nn.Linear(64, 96), nn.Tanh(), nn.Linear(96, 128))
    optimizer = torch.optim.Adam(policy.parameters(), lr=1e-3)
    total = 0.0
    for _step in range(steps):
        means = policy(torch.randn(128, 64))
        answers = (means + torch.randn_like(means)).detach()
        rewards = await service.score(answers)
        likelihood = -(answers - means).square().mean(1)
        loss = -(likelihood * (rewards - rewards.mean())).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += rewards.mean().item()
    return total


torch.manual_seed(31)
print(f"{asyncio.run(train(600)):.6f}")
