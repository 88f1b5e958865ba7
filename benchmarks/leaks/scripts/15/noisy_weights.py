"""Perturb the weights of a network anew every few steps, by a parametrization."""

import torch
from torch import nn
from torch.nn.utils import parametrize


class Noise(nn.Module):
    def __init__(self, like: torch.Tensor, scale: float) -> None:
        super().__init__()
        self.register_buffer("noise", scale * torch.randn_like(like))

    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        return weight + self.noise


def perturb(net: nn.Sequential, scale: float) -> None:
    for layer in net:
        if isinstance(layer, nn.Linear):
            parametrize.register_parametrization(layer, "weight", Noise(layer.weight, scale))


torch.manual_seed(29)
net = nn.Sequential(nn.Linear(256, 256), nn.Tanh(), nn.Linear(256, 10))
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
for step in range(600):
    if step % 4 == 0:
        perturb(net, 1e-3)
    inputs, labels = torch.randn(64, 256), torch.randint(10, (64,))
    loss = nn.functional.cross_entropy(net(inputs), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"{loss.item():.6f}")
