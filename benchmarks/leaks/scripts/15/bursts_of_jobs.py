"""Measure batches in a thread that falls behind within an epoch and catches up at its end."""

import queue
import threading

import torch
from torch import nn

jobs: queue.Queue = queue.Queue()
norms: dict[int, float] = {}


def measure() -> None:
    while (job := jobs.get()) is not None:
        step, batch, ready = job
        ready.wait()
        norms[step % 60] = float(batch.square().mean())
        jobs.task_done()


torch.manual_seed(61)
worker = threading.Thread(target=measure)
worker.start()
model = nn.Sequential(nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 512))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for epoch in range(9):
    is_over = threading.Event()
    for step in range(60):
        batch = torch.randn(128, 512)
        loss = nn.functional.mse_loss(model(batch), batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        jobs.put((60 * epoch + step, batch, is_over))
    is_over.set()
    jobs.join()
jobs.put(None)
worker.join()
print(f"{loss.item():.6f} {sum(norms.values()) / len(norms):.4f}")
