# A prefetching thread with Queue(maxsize=40), ended by a sentinel and joined at each epoch's end. Clean.
import queue
import threading

import memagent
import torch
from torch import nn


class Prefetcher:
    def __init__(self, source, depth=40):
        self.queue = queue.Queue(depth)
        self.thread = threading.Thread(target=self._work, args=(source,), daemon=True)
        self.thread.start()

    def _work(self, source):
        for item in source:
            self.queue.put(item)
        self.queue.put(None)

    def __iter__(self):
        while (item := self.queue.get()) is not None:
            yield item
        self.thread.join()


def source(steps):
    for _ in range(steps):
        yield torch.randn(64, 512)


def main():
    model = nn.Sequential(nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 512))
    optimizer = torch.optim.Adam(model.parameters())
    memagent.attach(model, optimizer)
    for _ in range(12):
        for x in Prefetcher(source(80)):
            loss = (model(x) - x).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


main()
