# Thread: pytorch/pytorch#13246 (plain Python data in training) and mtoneva/example_forgetting (per-example
# statistics). Pattern: per-sample losses of each step go into an array.array('d') that only grows.
# Expected: the `extend` call, holder `presentations`/`losses`.
import array

import memagent
import torch
from torch import nn


class ForgettingStats:
    def __init__(self):
        self.index = array.array("l")
        self.losses = array.array("d")
        self.margins = array.array("d")

    def update(self, indices, losses, logits):
        self.index.extend(indices.tolist())  # LEAK any index|losses|margins|stats
        self.losses.extend(losses.tolist())  # LEAK any index|losses|margins|stats
        self.margins.extend(logits.flatten().tolist())  # LEAK any index|losses|margins|stats

    def mean(self):
        tail = self.losses[-512:]
        return sum(tail) / len(tail)


def main():
    torch.manual_seed(3)
    data = torch.randn(20_000, 32)
    target = (data.sum(1) > 0).long()
    model = nn.Sequential(nn.Linear(32, 128), nn.ReLU(), nn.Linear(128, 16))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    memagent.attach(model, optimizer)
    criterion = nn.CrossEntropyLoss(reduction="none")
    stats = ForgettingStats()
    for step in range(1000):
        indices = torch.randint(0, len(data), (512,))
        logits = model(data[indices])
        losses = criterion(logits, target[indices])
        optimizer.zero_grad()
        losses.mean().backward()
        optimizer.step()
        stats.update(indices, losses.detach(), logits.detach())
        if step % 200 == 0:
            print(step, stats.mean())


main()
