"""Population-based training: each member keeps the bytes of all checkpoints that it was copied from."""

import io
import random
import sys
from dataclasses import dataclass, field

import torch
from torch import nn

# WINDOW 60
STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 150


@dataclass
class Member:
    name: str
    model: nn.Module
    optimizer: torch.optim.Optimizer
    lineage: list = field(default_factory=list)
    score: float = 0.0

    def checkpoint(self):
        buffer = io.BytesIO()
        torch.save({"model": self.model.state_dict(), "score": self.score}, buffer)
        return buffer.getvalue()

    def restore(self, blob):
        self.model.load_state_dict(torch.load(io.BytesIO(blob))["model"])
        self.lineage.append(blob)  # LEAK any lineage|population|Member


def new_member(n):
    model = nn.Sequential(
        nn.Linear(40, 160), nn.ReLU(), nn.Linear(160, 160), nn.ReLU(), nn.Linear(160, 1)
    )
    return Member(
        f"member-{n}", model, torch.optim.SGD(model.parameters(), lr=10 ** -random.uniform(2, 4))
    )


population = [new_member(n) for n in range(4)]
for step in range(STEPS):
    member = population[step % len(population)]
    x = torch.randn(64, 40)
    loss = (member.model(x) - x.cos().sum(1, keepdim=True)).abs().mean()
    member.optimizer.zero_grad()
    loss.backward()
    member.optimizer.step()
    member.score = -loss.item()
    if step % 3 == 2:
        ranked = sorted(population, key=lambda m: m.score)
        ranked[0].restore(ranked[-1].checkpoint())
