# Thread: chainer/chainer#5061 "Fix kernels not memorized" / memoize keyed by a value that never repeats.
# Pattern: a `memoize` decorator keeps results in a dict in its closure. The augmentation draws a fresh
# float sigma each step, so each call adds a kernel.
# Expected: `memo[key] = f(*args)`, holder `memo` (closure of the decorator).
import functools
import math
import random

import memagent
import torch
import torch.nn.functional as F
from torch import nn


def memoize(f):
    memo = {}

    @functools.wraps(f)
    def ret(*args, **kwargs):
        arg_key = (args, frozenset(kwargs.items()))
        result = memo.get(arg_key, None)
        if result is None:
            result = f(*args, **kwargs)
            memo[arg_key] = result  # LEAK any memo
        return result

    return ret


@memoize
def motion_blur_matrix(size, sigma):
    grid = torch.arange(size, dtype=torch.float32)
    weight = torch.exp(-((grid[:, None] - grid[None, :]) ** 2) / (2 * sigma**2)) / (
        sigma * math.sqrt(2 * math.pi)
    )
    return weight / weight.sum(1, keepdim=True)  # ALLOCATES


class RandomBlur(nn.Module):
    def __init__(self, low=0.5, high=3.0):
        super().__init__()
        self.low, self.high = low, high

    def forward(self, signal):
        return signal @ motion_blur_matrix(signal.shape[-1], random.uniform(self.low, self.high))


class Denoiser(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv1d(1, 16, 9, padding=4),
            nn.ReLU(),
            nn.Conv1d(16, 16, 9, padding=4),
            nn.ReLU(),
            nn.Conv1d(16, 1, 9, padding=4),
        )

    def forward(self, x):
        return x + self.net(x)


def main():
    augment = RandomBlur()
    model = Denoiser()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    memagent.attach(model, optimizer)
    for step in range(800):
        clean = torch.randn(16, 1, 160).cumsum(-1)
        loss = F.l1_loss(model(augment(clean)), clean)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


main()
