from concurrent.futures import ThreadPoolExecutor

import torch
from torch import nn

model = nn.Sequential(nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 8))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)


def train_step(loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def prepare(index):
    return torch.randn(512, 128)


def main():
    pending = []
    with ThreadPoolExecutor(1) as pool:
        for step in range(70):
            future = pool.submit(prepare, step)
            pending.append(future)  # LEAK list pending
            train_step(model(future.result()).square().mean())


main()
