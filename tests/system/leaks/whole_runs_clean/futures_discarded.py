# Asynchronous scoring on a thread pool: futures are in a set and removed by their done callback; each
# sweep takes finished results. Clean.
import threading
from concurrent.futures import ThreadPoolExecutor

import memagent
import torch
from torch import nn


class AsyncScorer:
    def __init__(self):
        self.pool = ThreadPoolExecutor(2)
        self.pending = set()
        self.lock = threading.Lock()
        self.total = 0.0

    def submit(self, outputs, inputs):
        future = self.pool.submit(self._score, outputs, inputs)
        with self.lock:
            self.pending.add(future)
        future.add_done_callback(self._done)

    def _score(self, outputs, inputs):
        return (outputs - inputs).abs().mean().item()

    def _done(self, future):
        with self.lock:
            self.pending.discard(future)
            self.total += future.result()


def main():
    model = nn.Sequential(nn.Linear(300, 300), nn.ReLU(), nn.Linear(300, 300))
    optimizer = torch.optim.Adam(model.parameters())
    memagent.attach(model, optimizer)
    scorer = AsyncScorer()
    for _ in range(850):
        x = torch.randn(64, 300)
        y = model(x)
        loss = (y - x).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scorer.submit(y.detach(), x)
    scorer.pool.shutdown()


main()
