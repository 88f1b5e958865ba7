"""Train a dialogue scorer, which remembers the last turns of its user; none if so configured."""

from dataclasses import dataclass, field

import torch
from torch import nn


@dataclass
class Memory:
    max_turns: int
    turns: list[torch.Tensor] = field(default_factory=list)

    def add(self, turn: torch.Tensor) -> None:
        self.turns = [*self.turns, turn][-self.max_turns :]

    def summary(self, width: int) -> torch.Tensor:
        recent = self.turns[-4:]
        return torch.stack(recent).mean((0, 1)) if recent else torch.zeros(width)


torch.manual_seed(11)
encoder = nn.GRU(48, 96, batch_first=True)
head = nn.Linear(96, 2)
optimizer = torch.optim.Adam([*encoder.parameters(), *head.parameters()], lr=1e-3)
memory = Memory(max_turns=0)
for _ in range(500):
    words, labels = torch.randn(16, 20, 48), torch.randint(2, (16,))
    outputs, _state = encoder(words)
    scores = head(outputs[:, -1] + memory.summary(96))
    loss = nn.functional.cross_entropy(scores, labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    memory.add(outputs[:, -8:].detach().flatten(0, 1))
print(f"{loss.item():.6f}")
