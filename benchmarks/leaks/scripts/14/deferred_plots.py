"""Defer drawing to a quiet moment that never comes: closures keep their images."""

import torch
from torch import nn


class Deferred:
    def __init__(self, patience: int) -> None:
        self.patience = patience
        self.jobs = []

    def later(self, job) -> None:
        self.jobs.append(job)

    def run(self, busy: bool) -> None:
        if not busy:
            while self.jobs:
                self.jobs.pop()()


def draw_job(images: torch.Tensor, step: int):
    def job():
        return step, images.mul(255).byte()

    return job


torch.manual_seed(9)
deferred = Deferred(patience=100)
decoder = nn.Sequential(nn.Linear(32, 256), nn.ReLU(), nn.Linear(256, 1_024), nn.Sigmoid())
optimizer = torch.optim.Adam(decoder.parameters())
for step in range(700):
    target = torch.rand(64, 1_024)
    images = decoder(torch.randn(64, 32))
    loss = nn.functional.binary_cross_entropy(images, target)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 2 == 0:
        deferred.later(draw_job(images.detach(), step))
    deferred.run(busy=True)
print(f"{loss.item():.6f}")
