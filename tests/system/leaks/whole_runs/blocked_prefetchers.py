# Thread: justheuristic/prefetch_generator#8 and #12 "memory leak in a loop".
# Pattern: each short epoch (8 steps) starts a thread that fills a bounded queue. The loop leaves the
# epoch early, the thread stays blocked in `put` for ever, and with it the queue and its batches.
# Expected: the put, the queue's or the thread's creation, or its start; holder the queue, the
# thread/BackgroundGenerator, `generator`, or `item`.
import queue
import threading

import memagent
import torch
from torch import nn


class BackgroundGenerator(threading.Thread):
    def __init__(self, generator, max_prefetch=4):
        super().__init__(daemon=True)
        self.queue = queue.Queue(max_prefetch)  # LEAK any queue|Background|thread|generator|item
        self.generator = generator
        self.start()  # LEAK any queue|Background|thread|generator|item

    def run(self):
        for item in self.generator:
            self.queue.put(item)  # LEAK any queue|Background|thread|generator|item
        self.queue.put(None)

    def __iter__(self):
        return self

    def __next__(self):
        item = self.queue.get()
        if item is None:
            raise StopIteration
        return item


def load(folder, batches):
    for _ in range(batches):
        yield torch.randn(48, 784), torch.randint(0, 10, (48,))  # ALLOCATES


def make_net():
    return nn.Sequential(
        nn.Linear(784, 256), nn.LeakyReLU(0.1), nn.Dropout(0.2), nn.Linear(256, 10)
    )


def main():
    net = make_net()
    optimizer = torch.optim.RMSprop(net.parameters(), lr=1e-4)
    memagent.attach(net, optimizer)
    criterion = nn.CrossEntropyLoss()
    for epoch in range(110):
        loader = BackgroundGenerator(
            load(f"shard-{epoch}", batches=40)
        )  # LEAK any queue|Background|thread|generator|item|loader
        for i, (inputs, targets) in enumerate(loader):
            optimizer.zero_grad()
            loss = criterion(net(inputs), targets)
            loss.backward()
            optimizer.step()
            if i + 1 >= 8:
                break


main()
