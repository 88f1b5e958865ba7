import collections
import threading

import torch
from torch import nn

model = nn.Sequential(nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 8))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)


def train_step(loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


class Writer:
    def __init__(self):
        self._pending = collections.deque()
        self._lock = threading.Lock()

    def add_histogram(self, tag, values, step):
        with self._lock:
            self._pending.append((tag, values.detach().clone(), step))  # LEAK deque Writer._pending


writer = Writer()
for step in range(70):
    train_step(model(torch.randn(64, 128)).square().mean())
    for name, parameter in model.named_parameters():
        writer.add_histogram(name, parameter, step)
