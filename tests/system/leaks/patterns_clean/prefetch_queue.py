import queue
import threading

import torch
from torch import nn

model = nn.Sequential(nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 8))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)


def train_step(loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


ready = queue.Queue(maxsize=12)


def produce():
    for index in range(70):
        ready.put(torch.randn(256, 128))


threading.Thread(target=produce, daemon=True).start()
for step in range(70):
    train_step(model(ready.get()).square().mean())
