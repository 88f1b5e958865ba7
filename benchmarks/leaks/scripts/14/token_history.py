"""Sample tokens without repetition: the penalty looks back at all that was ever sampled."""

import torch
from torch import nn


class Penalty:
    __slots__ = ("sampled", "factor")

    def __init__(self, factor: float) -> None:
        self.sampled = []
        self.factor = factor

    def __call__(self, logits: torch.Tensor) -> torch.Tensor:
        if self.sampled:
            logits = logits.clone()
            logits[:, [text[0] for text in self.sampled[-8:]]] /= self.factor
        choice = torch.distributions.Categorical(logits=logits).sample((80,))
        self.sampled.extend(tuple(row) for row in choice.tolist())
        return choice


torch.manual_seed(13)
penalty = Penalty(1.2)
model = nn.Sequential(nn.Embedding(5_000, 64), nn.Linear(64, 5_000))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
tokens = torch.randint(5_000, (32,))
for _ in range(500):
    logits = model(tokens)
    with torch.no_grad():
        following = penalty(logits)[0]
    loss = nn.functional.cross_entropy(logits, following)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    tokens = following
print(f"{loss.item():.6f}")
