"""Train with a writer of scalars: norms of weights and gradients go to a file, one line each."""

import json

import torch
from torch import nn


class ScalarWriter:
    def __init__(self, file_name: str) -> None:
        self.file = open(file_name, "w")
        self.scalars = {}

    def add_scalars(self, tag: str, values: dict[str, float], step: int) -> None:
        for name, value in values.items():
            self.file.write(f"{step} {tag}/{name} {value:.6g}\n")
            self.scalars.setdefault(f"{tag}/{name}", []).append([step, step * 0.004, value])

    def export(self, file_name: str) -> None:
        with open(file_name, "w") as file:
            json.dump(self.scalars, file)

    def close(self) -> None:
        self.file.close()


torch.manual_seed(23)
blocks = [nn.Sequential(nn.Linear(48, 48), nn.Tanh()) for _ in range(12)]
model = nn.Sequential(*blocks, nn.Linear(48, 48))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
writer = ScalarWriter("scalars.txt")
for step in range(600):
    inputs = torch.randn(64, 48)
    loss = nn.functional.mse_loss(model(inputs), inputs)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    for name, parameter in model.named_parameters():
        rows = parameter.detach().flatten()[:8].tolist()
        writer.add_scalars(name, {f"weight {i}": row for i, row in enumerate(rows)}, step)
        writer.add_scalars(name, {"gradient": float(parameter.grad.norm())}, step)
writer.close()
print(f"{loss.item():.6f}")
