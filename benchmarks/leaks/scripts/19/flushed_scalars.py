"""Train with a writer of scalars, which gathers them for a while and writes a file of each tag."""

import json

import torch
from torch import nn


class ScalarWriter:
    def __init__(self, file_name: str, every: int) -> None:
        self.file_name = file_name
        self.every = every
        self.scalars = {}

    def add_scalars(self, tag: str, values: dict[str, float], step: int) -> None:
        for name, value in values.items():
            self.scalars.setdefault(f"{tag}/{name}", []).append([step, step * 0.004, value])

    def flush(self, step: int) -> None:
        if step % self.every == self.every - 1:
            with open(self.file_name, "a") as file:
                file.write(json.dumps(self.scalars) + "\n")
            self.scalars.clear()


torch.manual_seed(24)
blocks = [nn.Sequential(nn.Linear(48, 48), nn.Tanh()) for _ in range(12)]
model = nn.Sequential(*blocks, nn.Linear(48, 48))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
writer = ScalarWriter("scalars.jsonl", every=110)
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
    writer.flush(step)
print(f"{loss.item():.6f}")
