"""Search learning rates: each trial has its own logger, which shows its last messages on failure."""

import logging
import logging.handlers
import math

import torch
from torch import nn


class Trial:
    def __init__(self, number: int, rate: float) -> None:
        self.log = logging.getLogger(f"search.trial-{number}")
        self.log.propagate = False
        self.log.setLevel(logging.DEBUG)
        self.log.addHandler(logging.handlers.MemoryHandler(1000, flushLevel=logging.ERROR))
        torch.manual_seed(17)
        self.model = nn.Sequential(nn.Linear(128, 128), nn.ELU(), nn.Linear(128, 10))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=rate)

    def run(self, steps: int) -> float:
        for step in range(steps):
            images, labels = torch.randn(128, 128), torch.randint(10, (128,))
            logits = self.model(images)
            loss = nn.functional.cross_entropy(logits, labels)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.log.debug("step %d: loss %s, logits %s", step, loss.detach(), images[:, :64])
        return loss.item()


best = math.inf
for number in range(90):
    best = min(best, Trial(number, 10 ** (-3 + number / 60)).run(steps=8))
print(f"{best:.6f}")
