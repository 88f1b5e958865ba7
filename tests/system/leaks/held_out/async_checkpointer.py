"""A thread writes checkpoints, and its stager caches a host copy for each storage that it met.
https://github.com/pytorch/pytorch/issues/170163"""

import io
import queue
import sys
import threading

import torch
from torch import nn

STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 150


class Stager:
    def __init__(self):
        self.cached = {}

    def stage(self, state, version):
        staged = {}
        for name, tensor in state.items():
            key = (name, version)
            if key not in self.cached:
                self.cached[key] = torch.empty_like(tensor)  # LEAK any cached
            staged[name] = self.cached[key].copy_(tensor)
        return staged


class AsyncCheckpointer(threading.Thread):
    def __init__(self):
        super().__init__(daemon=True)
        self.requests = queue.Queue(maxsize=1)
        self.stager = Stager()
        self.latest = b""

    def run(self):
        while True:
            request = self.requests.get()
            if request is None:
                return
            state, version = request
            buffer = io.BytesIO()
            torch.save(self.stager.stage(state, version), buffer)
            self.latest = buffer.getvalue()

    def save(self, model, version):
        self.requests.put(({k: v.clone() for k, v in model.state_dict().items()}, version))


model = nn.LSTM(48, 64, num_layers=2, batch_first=True)
head = nn.Linear(64, 48)
optimizer = torch.optim.Adam([*model.parameters(), *head.parameters()], lr=1e-3)
checkpointer = AsyncCheckpointer()
checkpointer.start()
for step in range(STEPS):
    x = torch.randn(8, 12, 48)
    loss = (head(model(x[:, :-1])[0]) - x[:, 1:]).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 3 == 0:
        checkpointer.save(model, step)
checkpointer.requests.put(None)
checkpointer.join()
