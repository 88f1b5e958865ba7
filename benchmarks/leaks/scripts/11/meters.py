"""Distil a teacher, and keep running averages of the losses in meters."""

import torch
import torch.nn.functional as F
from torch import nn


class AverageMeter:
    def __init__(self, name: str) -> None:
        self.name = name
        self.val = 0
        self.sum = 0
        self.count = 0

    def update(self, val, n=1) -> None:
        self.val = val
        self.sum += val * n
        self.count += n

    @property
    def avg(self):
        return self.sum / max(self.count, 1)


def mlp(width: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(100, width), nn.GELU(), nn.Linear(width, width), nn.GELU(), nn.Linear(width, 20)
    )


torch.manual_seed(0)
student, teacher = mlp(320), mlp(320)
teacher.requires_grad_(False)
optimizer = torch.optim.Adam(student.parameters(), lr=3e-4)
meters = {name: AverageMeter(name) for name in ("loss", "agreement")}
for step in range(1, 601):
    x = torch.randn(1024, 100)
    with torch.no_grad():
        wanted = teacher(x).softmax(-1)
    loss = F.kl_div(student(x).log_softmax(-1), wanted, reduction="batchmean")
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    meters["loss"].update(loss.item(), len(x))
    few = x[:192]
    noisy = student(few + 0.1 * torch.randn_like(few))
    agreement = (noisy.softmax(-1) * wanted[:192]).sum(-1).mean()
    meters["agreement"].update(agreement, len(few))
    if step % 100 == 0:
        print(step, *(f"{meter.name} {float(meter.avg):.4f}" for meter in meters.values()))
