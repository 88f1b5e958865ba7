"""Standard output is also collected for the tracker: https://github.com/wandb/wandb/issues/354."""

import contextlib
import io
import sys

import torch
from torch import nn


class Tee:
    def __init__(self, stream):
        self.stream = stream
        self.captured = io.StringIO()

    def write(self, text):
        self.captured.write(text)  # LEAK any captured
        return len(text)

    def flush(self):
        self.stream.flush()


def train(steps):
    model = nn.Sequential(nn.Linear(32, 128), nn.ReLU(), nn.Linear(128, 64))
    optimizer = torch.optim.Adam(model.parameters())
    for step in range(steps):
        output = model(torch.randn(240, 32))
        loss = output.square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(step, loss.item(), output.tolist())


tee = Tee(sys.stdout)
with contextlib.redirect_stdout(tee):
    train(120)
print(tee.captured.tell(), "characters")
