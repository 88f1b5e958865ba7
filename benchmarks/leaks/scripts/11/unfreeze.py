"""Fine-tune from the head down: every 35 steps one more block of the backbone learns too."""

import torch
import torch.nn.functional as F
from torch import nn


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(x)))


class Backbone(nn.Module):
    def __init__(self, width: int = 384, depth: int = 7) -> None:
        super().__init__()
        self.stem = nn.Linear(80, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))
        self.head = nn.Linear(width, 12)

    def forward(self, x):
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def unfreeze(model: Backbone, count: int) -> None:
    for block in list(model.blocks)[len(model.blocks) - count :]:
        block.requires_grad_(True)


def main() -> None:
    torch.manual_seed(0)
    model = Backbone()
    model.requires_grad_(False)
    model.head.requires_grad_(True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    warmup = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=50)
    for step in range(600):
        if step and step % 35 == 0:
            unfreeze(model, min(step // 35, len(model.blocks)))
        x, y = torch.randn(96, 80), torch.randint(0, 12, (96,))
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        warmup.step()


main()
