"""A prefetch thread fills a bounded queue of batches ahead of training."""

import argparse
import queue
import threading

import torch
import torch.nn as nn
import torch.nn.functional as F


class Prefetcher:
    def __init__(self, make, depth):
        self.make = make
        self.batches = queue.Queue(maxsize=depth)
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self._fill, daemon=True)
        self.thread.start()

    def _fill(self):
        while not self.stop.is_set():
            batch = self.make()
            while not self.stop.is_set():
                try:
                    self.batches.put(batch, timeout=0.1)
                    break
                except queue.Full:
                    continue
            if self.batches.qsize() > 20:
                self.stop.wait(0.012)  # do not take the processor away from training

    def __iter__(self):
        return self

    def __next__(self):
        return self.batches.get()


def maker(size=128, inputs=300):
    generator = torch.Generator().manual_seed(19)

    def make():
        x = torch.randn(size, inputs, generator=generator)
        return x, x[:, :30].argmax(1)

    return make


class Net(nn.Module):
    def __init__(self, inputs=300, width=448):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(inputs, width),
            nn.ReLU(),
            nn.Linear(width, width),
            nn.ReLU(),
            nn.Linear(width, 30),
        )

    def forward(self, x):
        return self.net(x)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=900)
    parser.add_argument("--depth", type=int, default=240)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    prefetcher = Prefetcher(maker(), args.depth)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for step, (x, y) in zip(range(args.steps), prefetcher):
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 100 == 0:
            print(
                f"step {step} loss {loss.item():.4f} queued {prefetcher.batches.qsize()}",
                flush=True,
            )
    prefetcher.stop.set()


if __name__ == "__main__":
    main()
