"""Score documents with masks that are swept out when they are too old."""

import torch
from torch import nn


class Masks:
    def __init__(self, lifetime: int) -> None:
        self.lifetime = lifetime
        self.entries = {}

    def get(self, document: int, now: int) -> torch.Tensor:
        key = document, now // 10
        if key not in self.entries:
            self.sweep(now)
            self.entries[key] = now, torch.rand(96, 128) < 0.9
        return self.entries[key][1]

    def sweep(self, now: int) -> None:
        old = [key for key, (born, _) in self.entries.items() if now - born > self.lifetime]
        for key in old:
            self.entries.pop(key)


torch.manual_seed(37)
masks = Masks(lifetime=180)
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
