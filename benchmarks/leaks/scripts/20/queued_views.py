"""Contrast two views of each sample with each other, and with a queue of 1024 older views."""

import copy

import torch
from torch import nn


class Encoder(nn.Sequential):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(
            nn.Linear(inputs, 96), nn.BatchNorm1d(96), nn.ReLU(), nn.Linear(96, outputs)
        )

    def forward(self, samples: torch.Tensor) -> torch.Tensor:
        return nn.functional.normalize(super().forward(samples))


class Contrast(nn.Module):
    def __init__(self, inputs: int, outputs: int, size: int, momentum: float = 0.99) -> None:
        super().__init__()
        self.momentum = momentum
        self.encoder = Encoder(inputs, outputs)
        self.slow_encoder = copy.deepcopy(self.encoder)
        self.register_buffer("queue", nn.functional.normalize(torch.randn(size, outputs)))
        self.position = 0

    @torch.no_grad()
    def follow(self) -> None:
        pairs = zip(self.slow_encoder.parameters(), self.encoder.parameters(), strict=True)
        for slow, fast in pairs:
            slow.lerp_(fast, 1 - self.momentum)

    def enqueue(self, keys: torch.Tensor) -> None:
        end = self.position + len(keys)
        self.queue[self.position : end] = keys
        self.position = end % len(self.queue)

    def forward(self, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        queries = self.encoder(first)
        self.follow()
        keys = self.slow_encoder(second)
        positive = (queries * keys.detach()).sum(1, keepdim=True)
        negative = queries @ self.queue.detach().clone().T
        self.enqueue(keys)
        return torch.cat([positive, negative], 1) / 0.1


def distort(samples: torch.Tensor) -> torch.Tensor:
    kept = torch.rand_like(samples) > 0.2
    return samples * kept + 0.1 * torch.randn_like(samples)


torch.manual_seed(204)
centers = torch.randn(32, 80)
contrast = Contrast(80, 32, size=1024)
optimizer = torch.optim.SGD(contrast.encoder.parameters(), lr=0.05, momentum=0.9)
for _step in range(400):
    samples = centers[torch.randint(32, (64,))] + 0.3 * torch.randn(64, 80)
    scores = contrast(distort(samples), distort(samples))
    loss = nn.functional.cross_entropy(scores, torch.zeros(64, dtype=torch.long))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"{loss.item():.6f}")
