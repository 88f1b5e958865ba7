"""Imitate an expert: transitions of all iterations stay in the memory of the sampler."""

from collections import namedtuple

import numpy as np
import torch
from torch import nn

Transition = namedtuple("Transition", "state action mask reward")


class Memory:
    def __init__(self) -> None:
        self.items = []

    def push(self, *values) -> None:
        self.items.append(Transition(*values))

    def sample(self, size: int) -> Transition:
        return Transition(*zip(*self.items[-size:]))


def collect(memory: Memory, rng: np.random.Generator, steps: int) -> None:
    state = rng.standard_normal(51)
    for _ in range(steps):
        action = rng.standard_normal(2)
        following = 0.9 * state + 0.1 * rng.standard_normal(51)
        memory.push(state, action, 1, float(following @ state))
        state = following


def main() -> None:
    torch.manual_seed(5)
    rng = np.random.default_rng(5)
    discriminator = nn.Sequential(nn.Linear(53, 128), nn.Tanh(), nn.Linear(128, 1))
    optimizer = torch.optim.Adam(discriminator.parameters(), lr=3e-4)
    memory = Memory()
    for _ in range(450):
        collect(memory, rng, 200)
        batch = memory.sample(200)
        pairs = np.concatenate([np.stack(batch.state), np.stack(batch.action)], 1)
        fake = discriminator(torch.as_tensor(pairs, dtype=torch.float32))
        real = discriminator(torch.randn(200, 53))
        loss = nn.functional.softplus(fake).mean() + nn.functional.softplus(-real).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"{loss.item():.6f}")


main()
