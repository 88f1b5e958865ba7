"""Meta-learn over families of tasks: each family is a class, made from a table of coefficients."""

import torch
from torch import nn


class Task:
    families = {}
    coefficients = torch.zeros(96, 96)

    def __init_subclass__(cls, **options: object) -> None:
        super().__init_subclass__(**options)
        Task.families.setdefault(cls.__name__, []).append(cls)

    def __init__(self, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)

    def batch(self, size: int) -> tuple[torch.Tensor, torch.Tensor]:
        inputs = torch.randn(size, 96, generator=self.generator)
        return inputs, torch.sin(inputs @ self.coefficients)


def make_family(kind: str) -> type[Task]:
    coefficients = torch.randn(96, 96) / 10
    if kind == "Sparse":
        coefficients *= torch.rand(96, 96) > 0.8
    return type(kind, (Task,), {"coefficients": coefficients})


torch.manual_seed(14)
model = nn.Sequential(nn.Linear(96, 96), nn.Tanh(), nn.Linear(96, 96))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for step in range(500):
    family = make_family("Sparse" if step % 3 else "Dense")
    first, second = family(2 * step), family(2 * step + 1)
    loss = 0.0
    for task in (first, second):
        inputs, targets = task.batch(64)
        loss = loss + nn.functional.mse_loss(model(inputs), targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"{loss.item():.6f}")
