"""Keep earlier weights for a comparison: the older they are, the fewer of them stay."""

import torch
from torch import nn


class Snapshots:
    def __init__(self) -> None:
        self.taken: list[tuple[int, torch.Tensor]] = []

    def take(self, step: int, model: nn.Module) -> None:
        weights = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
        self.taken.append((step, weights))
        self.thin(step)

    def thin(self, now: int) -> None:
        self.taken = [
            (step, weights)
            for step, weights in self.taken
            if step % 2 ** max(0, (now - step).bit_length() - 5) == 0
        ]


torch.manual_seed(67)
snapshots = Snapshots()
model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for step in range(700):
    batch = torch.randn(128, 64)
    loss = nn.functional.mse_loss(model(batch), batch)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    snapshots.take(step, model)
print(f"{loss.item():.6f} {len(snapshots.taken)}")
