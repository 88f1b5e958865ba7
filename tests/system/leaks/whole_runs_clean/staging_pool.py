"""Batches are staged in buffers of a pool; the pool grows with the number of batches in flight.

Buffer pool grows until 42%.
"""

from collections import deque

import numpy as np
import torch
from torch import nn


class BufferPool:
    def __init__(self, shape):
        self.shape = shape
        self.free, self.created = [], 0

    def acquire(self):
        if self.free:
            return self.free.pop()
        self.created += 1
        return np.ones(self.shape, np.float32)

    def release(self, buffer):
        self.free.append(buffer)


class Stager:
    def __init__(self, pool, depth):
        self.pool, self.depth = pool, depth
        self.pending = deque()
        self.rng = np.random.default_rng(0)

    def target(self, step):
        """The pipeline deepens slowly while the readers warm up."""
        return min(self.depth, 2 + step // 4)

    def next(self, step):
        while len(self.pending) < self.target(step):
            buffer = self.pool.acquire()
            self.rng.standard_normal(out=buffer, dtype=np.float32)
            self.pending.append(buffer)
        return self.pending.popleft()


def main():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    pool = BufferPool((512, 320))
    stager = Stager(pool, depth=96)
    model = nn.Sequential(
        nn.Linear(320, 900), nn.ReLU(), nn.Linear(900, 900), nn.ReLU(), nn.Linear(900, 1)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    for step in range(900):
        buffer = stager.next(step)
        x = torch.from_numpy(buffer)
        y = x[:, :4].sum(1, keepdim=True).tanh()
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        pool.release(buffer)
        if step % 100 == 0:
            print(step, round(loss.item(), 5), pool.created)


if __name__ == "__main__":
    main()
