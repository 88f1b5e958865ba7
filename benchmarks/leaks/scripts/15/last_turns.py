"""Train a scorer with the last turns of its users, of which it keeps up to 220."""

import torch
from torch import nn


class Memory:
    def __init__(self, max_turns: int) -> None:
        self.max_turns = max_turns
        self.turns = []

    def add(self, turn: torch.Tensor) -> None:
        self.turns = [*self.turns, turn][-self.max_turns :]

    def sample(self, count: int) -> torch.Tensor:
        picks = torch.randint(len(self.turns), (count,)).tolist()
        return torch.stack([self.turns[pick] for pick in picks])


torch.manual_seed(47)
encoder = nn.GRU(48, 96, batch_first=True)
head = nn.Linear(96, 2)
optimizer = torch.optim.Adam([*encoder.parameters(), *head.parameters()], lr=1e-3)
memory = Memory(max_turns=220)
for _ in range(600):
    memory.add(torch.randn(40, 20, 48))
    words, labels = memory.sample(1)[0], torch.randint(2, (40,))
    outputs, _state = encoder(words)
    loss = nn.functional.cross_entropy(head(outputs[:, -1]), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"{loss.item():.6f}")
