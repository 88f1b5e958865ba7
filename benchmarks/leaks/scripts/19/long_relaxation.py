"""Relax positions of atoms by a long memory of steps, while the energies are learned."""

import torch
from torch import nn


class Relaxation:
    def __init__(self, positions: torch.Tensor, memory: int = 120) -> None:
        self.positions = positions
        self.memory = memory
        self.steps = positions.new_zeros(1, *positions.shape)

    def direction(self, forces: torch.Tensor) -> torch.Tensor:
        overlaps = (self.steps * forces).sum((1, 2), keepdim=True)
        lengths = self.steps.square().sum((1, 2), keepdim=True) + 1e-3
        return forces - 0.1 * (self.steps * overlaps / lengths).mean(0)

    def move(self, forces: torch.Tensor, rate: float = 0.02) -> None:
        step = (rate * self.direction(forces)).detach()
        self.positions = (self.positions + step).detach()
        self.steps = torch.cat([self.steps, step[None]])[-self.memory :]


torch.manual_seed(30)
energy = nn.Sequential(nn.Linear(12, 64), nn.Tanh(), nn.Linear(64, 1))
optimizer = torch.optim.Adam(energy.parameters(), lr=1e-3)
relaxation = Relaxation(torch.randn(320, 12))
for _step in range(500):
    positions = relaxation.positions.requires_grad_()
    predicted = energy(positions)
    (gradient,) = torch.autograd.grad(predicted.sum(), positions, create_graph=True)
    loss = (gradient + torch.sin(positions.detach())).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    relaxation.move(-gradient)
print(f"{loss.item():.6f} {float(relaxation.positions.detach().norm()):.4f}")
