"""A range test of 100 steps with its own copy of the state, then training with the rate found."""

import copy
import math
import sys

import torch
from torch import nn

STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 300
# CONFIRM 80


class RangeTest:
    def __init__(self, model, optimizer):
        self.model = model
        self.optimizer = optimizer
        self.saved = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
        self.history = {"lr": [], "loss": []}

    def run(self, step_function, begin=1e-6, end=1.0, steps=100):
        for n in range(steps):
            rate = begin * (end / begin) ** (n / steps)
            for group in self.optimizer.param_groups:
                group["lr"] = rate
            loss = step_function()
            self.history["lr"].append(rate)
            self.history["loss"].append(loss)
            if not math.isfinite(loss) or loss > 4 * min(self.history["loss"]):
                break
        losses = self.history["loss"]
        steepest = min(range(1, len(losses)), key=lambda i: losses[i] - losses[i - 1])
        self.model.load_state_dict(self.saved[0])
        self.optimizer.load_state_dict(self.saved[1])
        return self.history["lr"][steepest]


model = nn.Sequential(nn.Linear(128, 512), nn.ReLU(), nn.Linear(512, 128))
optimizer = torch.optim.AdamW(model.parameters())


def one_step():
    x = torch.randn(64, 128)
    loss = (model(x) - x.flip(1)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


rate = RangeTest(model, optimizer).run(one_step, steps=min(100, STEPS // 3))
for group in optimizer.param_groups:
    group["lr"] = min(rate, 1e-3)
for _ in range(STEPS - 100):
    one_step()
