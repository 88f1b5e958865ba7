"""Denoise images, each with a random generator of its own, so that its noise can be made again."""

import torch
from torch import nn


class Noise:
    def __init__(self) -> None:
        self.generators: dict[int, torch.Generator] = {}

    def of(self, image: int, size: int) -> torch.Tensor:
        if image not in self.generators:
            self.generators[image] = torch.Generator().manual_seed(image)
        return torch.randn(size, generator=self.generators[image])


torch.manual_seed(59)
noise = Noise()
model = nn.Sequential(nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 256))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for step in range(700):
    images = torch.rand(16, 256)
    noisy = images + torch.stack([noise.of(16 * step + place, 256) for place in range(16)])
    loss = nn.functional.mse_loss(model(noisy), images)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"{loss.item():.6f}")
