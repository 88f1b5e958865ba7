"""A thread fills an unbounded queue faster than training reads it:
https://github.com/justheuristic/prefetch_generator/issues/8."""

import queue
import threading

import torch
from torch import nn


class BackgroundGenerator(threading.Thread):
    def __init__(self, generator, max_prefetch=0):
        super().__init__(daemon=True)
        self.queue = queue.Queue(max_prefetch)
        self.generator = generator
        self.may_load = threading.Semaphore(0)
        self.start()

    def run(self):
        for item in self.generator:
            self.may_load.acquire()
            self.queue.put(item)  # LEAK any BackgroundGenerator.queue
        self.queue.put(None)

    def __iter__(self):
        return self

    def __next__(self):
        # Two requests for each batch that is read: loading runs ahead.
        self.may_load.release(2)
        item = self.queue.get()
        if item is None:
            raise StopIteration
        return item


def batches(count):
    for _ in range(count):
        yield torch.randn(512, 256), torch.randint(0, 10, (512,))


def main():
    model = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for step, (x, y) in enumerate(BackgroundGenerator(batches(400))):
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step == 150:
            break


main()
