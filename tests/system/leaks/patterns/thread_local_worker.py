import threading
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import nn

model = nn.Sequential(nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 8))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)


def train_step(loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


class Context(threading.local):
    def __init__(self):
        self.loaded = {}


context = Context()


def load(index):
    context.loaded[index] = torch.randn(512, 128)  # LEAK dict Context.loaded
    return context.loaded[index]


with ThreadPoolExecutor(1) as pool:
    for step in range(70):
        train_step(model(pool.submit(load, step).result()).square().mean())
