"""Reinforce answers by rewards of a service, which answers its requests in groups of sixty."""

import asyncio

import torch
from torch import nn


class Request:
    def __init__(self, answers: torch.Tensor) -> None:
        self.answers = answers
        self.rewards = asyncio.get_running_loop().create_future()
        self.timer = asyncio.get_running_loop().call_later(3600.0, self.expire)

    def expire(self) -> None:
        self.rewards.set_exception(TimeoutError())

    def answer(self) -> None:
        self.timer.cancel()
        self.rewards.set_result(torch.tanh(self.answers.mean(1)))


async def train(rounds: int, group: int = 60) -> float:
    policy = nn.Sequential(nn.Linear(64, 96), nn.Tanh(), nn.Linear(96, 128))
    optimizer = torch.optim.Adam(policy.parameters(), lr=1e-3)
    total = 0.0
    for _round in range(rounds):
        requests = []
        for _step in range(group):
            means = policy(torch.randn(128, 64))
            answers = (means + torch.randn_like(means)).detach()
            requests.append(Request(answers))
            advantage = torch.tanh(answers.mean(1)) - answers.mean()
            loss = ((answers - means).square().mean(1) * advantage).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        for request in requests:
            request.answer()
        rewards = await asyncio.gather(*(request.rewards for request in requests))
        total += torch.stack(rewards).mean().item()
    return total


torch.manual_seed(32)
print(f"{asyncio.run(train(10)):.6f}")
