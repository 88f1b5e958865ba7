"""Train a sparse network: the smallest weights are pruned a little more after every second step."""

import torch
from torch import nn
from torch.nn.utils import prune


def magnitude_mask(weight: torch.Tensor, density: float) -> torch.Tensor:
    kept = max(int(weight.numel() * density), 1)
    threshold = weight.detach().abs().flatten().topk(kept).values[-1]
    return (weight.detach().abs() >= threshold).float()


class SparseTrainer:
    def __init__(self, model: nn.Sequential, steps: int) -> None:
        self.model = model
        self.steps = steps
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)

    def step(self, number: int, inputs: torch.Tensor) -> float:
        loss = nn.functional.mse_loss(self.model(inputs), inputs.sin())
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        if number % 2:
            self.sparsify(1.0 - 0.8 * number / self.steps)
        return loss.item()

    def sparsify(self, density: float) -> None:
        for layer in self.model:
            if isinstance(layer, nn.Linear):
                mask = magnitude_mask(layer.weight, density)
                prune.custom_from_mask(layer, "weight", mask)


torch.manual_seed(17)
model = nn.Sequential(nn.Linear(128, 160), nn.Tanh(), nn.Linear(160, 128))
trainer = SparseTrainer(model, 600)
for number in range(600):
    loss = trainer.step(number, torch.randn(64, 128))
print(f"{loss:.6f}")
