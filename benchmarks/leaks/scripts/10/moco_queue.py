"""Momentum contrast with a queue of negatives that is filled batch by batch.

The queue of the paper, as a list of batches: it is trimmed to a number of keys.
"""
import copy
import dataclasses

import torch
import torch.nn.functional as F
from torch import nn


@dataclasses.dataclass
class NegativeQueue:
    limit: int
    parts: list = dataclasses.field(default_factory=list)

    def keys(self):
        return torch.cat(self.parts)

    def enqueue(self, keys):
        self.parts.append(keys)
        while sum(map(len, self.parts)) > self.limit:
            del self.parts[0]


def encoder():
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, 2, 1), nn.ReLU(), nn.Conv2d(16, 32, 3, 2, 1), nn.ReLU(), nn.Flatten(), nn.Linear(32 * 64, 1024)
    )


class MoCo:
    def __init__(self, limit, momentum=0.99, temperature=0.2):
        self.q, self.m, self.t = encoder(), momentum, temperature
        self.k = copy.deepcopy(self.q).requires_grad_(False)
        self.queue = NegativeQueue(limit)
        self.opt = torch.optim.SGD(self.q.parameters(), lr=0.03, momentum=0.9)

    def step(self, left, right):
        with torch.no_grad():
            for slow, fast in zip(self.k.parameters(), self.q.parameters()):
                slow.lerp_(fast, 1 - self.m)
            keys = F.normalize(self.k(right), dim=-1)
        query = F.normalize(self.q(left), dim=-1)
        logits = (query * keys).sum(-1, keepdim=True)
        if self.queue.parts:
            logits = torch.cat([logits, query @ self.queue.keys().T], 1)
        loss = F.cross_entropy(logits / self.t, torch.zeros(len(left), dtype=torch.long))
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        self.queue.enqueue(keys)
        return loss.item()


def views(n):
    base = torch.rand(n, 3, 1, 1) + 0.3 * torch.rand(n, 3, 32, 32)
    return base + 0.05 * torch.randn_like(base), base.flip(-1) + 0.05 * torch.randn_like(base)


if __name__ == "__main__":
    torch.manual_seed(19)
    torch.set_num_threads(1)
    moco = MoCo(limit=64 * 240)
    for step in range(1, 481):
        loss = moco.step(*views(64))
        if step % 80 == 0:
            print(f"{step}/480 loss {loss:.4f} negatives {len(moco.queue.keys())}")
