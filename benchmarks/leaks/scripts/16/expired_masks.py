"""Score documents with masks that are good for a while, then computed again."""

import torch
from torch import nn


class Masks:
    def __init__(self, lifetime: int) -> None:
        self.lifetime = lifetime
        self.entries = {}

    def get(self, document: int, now: int) -> torch.Tensor:
        key = document, now // 10
        if key in self.entries:
            born, mask = self.entries[key]
            if now - born <= self.lifetime:
                return mask
            del self.entries[key]
        mask = torch.rand(96, 128) < 0.9
        self.entries[key] = now, mask
        return mask


torch.manual_seed(31)
masks = Masks(lifetime=20)
model = nn.Sequential(nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 2))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for step in range(700):
    mask = torch.stack([masks.get(document, step) for document in torch.randint(60, (8,)).tolist()])
    inputs = torch.randn(8, 96, 128) * mask
    loss = nn.functional.cross_entropy(model(inputs).mean(1), torch.randint(2, (8,)))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"{loss.item():.6f}")
