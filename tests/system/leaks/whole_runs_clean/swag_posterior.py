"""SWAG: the deviations of the last weights from their running mean, at most `rank` of them.

24 deviations, full at 45%.
"""

import torch
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

torch.set_num_threads(1)
torch.manual_seed(0)


class SWAG:
    def __init__(self, model, rank=24):
        self.model, self.rank, self.n = model, rank, 0
        w = parameters_to_vector(model.parameters()).detach()
        self.mean, self.square = torch.zeros_like(w), torch.zeros_like(w)
        self.deviations = []

    def collect(self):
        w = parameters_to_vector(self.model.parameters()).detach()
        self.mean = (self.mean * self.n + w) / (self.n + 1)
        self.square = (self.square * self.n + w * w) / (self.n + 1)
        self.n += 1
        self.deviations.append(w - self.mean)
        if len(self.deviations) > self.rank:
            self.deviations.pop(0)

    def sample(self):
        var = (self.square - self.mean**2).clamp(min=1e-12)
        low = (
            sum(d * torch.randn(()) for d in self.deviations)
            / (2 * max(1, len(self.deviations) - 1)) ** 0.5
        )
        return self.mean + (0.5 * var).sqrt() * torch.randn_like(var) + low


def batch(n=1100):
    x = torch.rand(n, 32) * 4 - 2
    return x, (x[:, :1] ** 3 - 3 * x[:, 1:2]) * 0.3 + 0.1 * torch.randn(n, 1)


model = nn.Sequential(
    nn.Linear(32, 600), nn.Tanh(), nn.Linear(600, 600), nn.Tanh(), nn.Linear(600, 1)
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
swag = SWAG(model)
for step in range(1, 901):
    x, y = batch()
    loss = nn.functional.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step >= 120 and step % 12 == 0:
        swag.collect()
    if step % 100 == 0:
        line = f"{step} {loss.item():.4f} rank {len(swag.deviations)}"
        if swag.deviations:
            current = parameters_to_vector(model.parameters()).detach().clone()
            vector_to_parameters(swag.sample(), model.parameters())
            with torch.no_grad():
                line += f" sampled {nn.functional.mse_loss(model(x), y).item():.4f}"
            vector_to_parameters(current, model.parameters())
        print(line)
