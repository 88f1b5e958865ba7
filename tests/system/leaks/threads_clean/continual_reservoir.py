"""Continual learning with a reservoir of past examples and their logits (DER)."""

# BEGIN 44
# CONFIRM 80
import random

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn


class Reservoir:
    """Uniform sample of the stream (algorithm R) with stored logits."""

    def __init__(self, capacity, seed=0):
        self.capacity = capacity
        self.seen = 0
        self.random = random.Random(seed)
        self.slots = []

    def add(self, x, y, logits):
        for row in range(len(x)):
            item = (x[row].numpy().copy(), int(y[row]), logits[row].numpy().copy())
            self.seen += 1
            if len(self.slots) < self.capacity:
                self.slots.append(item)
                continue
            place = self.random.randrange(self.seen)
            if place < self.capacity:
                self.slots[place] = item

    def draw(self, n):
        xs, ys, ls = zip(*self.random.choices(self.slots, k=n))
        return torch.from_numpy(np.stack(xs)), torch.tensor(ys), torch.from_numpy(np.stack(ls))


class TaskStream:
    """Five tasks, each with its own permutation of the inputs."""

    def __init__(self, dim=784, tasks=5):
        self.prototypes = torch.randn(10, dim)
        self.orders = [torch.randperm(dim) for _ in range(tasks)]

    def batch(self, task, n=96):
        y = torch.randint(0, 10, (n,))
        x = self.prototypes[y] + torch.randn(n, 784)
        return x[:, self.orders[task]], y


def main():
    torch.manual_seed(12)
    torch.set_num_threads(1)
    stream, memory = TaskStream(), Reservoir(capacity=4800)
    model = nn.Sequential(
        nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    steps = 200
    for step in range(steps):
        task = step * 5 // steps
        x, y = stream.batch(task)
        logits = model(x)
        loss = F.cross_entropy(logits, y)
        if memory.slots:
            old_x, old_y, old_logits = memory.draw(96)
            replayed = model(old_x)
            loss = (
                loss
                + 0.5 * F.cross_entropy(replayed, old_y)
                + 0.1 * F.mse_loss(replayed, old_logits)
            )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        memory.add(x, y, logits.detach())
        if step % 40 == 39:
            print(f"task {task} loss {loss.item():.3f} stored {len(memory.slots)}")


if __name__ == "__main__":
    main()
