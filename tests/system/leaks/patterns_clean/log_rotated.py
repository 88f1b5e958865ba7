"""Lines of a log are kept in memory and written out every 9 steps; the text is then dropped."""

import io

import torch
from torch import nn


class Log:
    def __init__(self):
        self.lines = []
        self.sink = io.StringIO()
        self.written = 0

    def write(self, step, values):
        self.lines.append(f"{step} " + " ".join(f"{value:.5f}" for value in values))
        if len(self.lines) >= 9:
            self.flush()

    def flush(self):
        self.sink.write("\n".join(self.lines))
        self.written += self.sink.tell()
        self.sink.seek(0)
        self.sink.truncate()
        self.lines.clear()


log = Log()
model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 300))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(150):
    output = model(torch.randn(4, 32))
    loss = output.square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    log.write(step, output.detach().flatten().tolist())
