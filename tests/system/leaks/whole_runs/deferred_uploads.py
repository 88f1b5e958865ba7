"""As in: tornadoweb/tornado#408; Tribler#847."""

import pickle
import sched
import time

import numpy as np
import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(8)
UPLOAD_DELAY = 5_000  # milliseconds


class Uploader:
    def __init__(self):
        self.scheduler = sched.scheduler(time.monotonic, time.sleep)
        self.sent = 0

    def later(self, name, arrays):
        body = pickle.dumps({"name": name, "arrays": arrays})
        self.scheduler.enter(UPLOAD_DELAY, 1, self.send, (name, body))  # LEAK any _queue|scheduler

    def send(self, name, body):
        self.sent += len(body)

    def poll(self):
        self.scheduler.run(blocking=False)


class Forecaster(nn.Module):
    def __init__(self):
        super().__init__()
        self.gru = nn.GRU(8, 256, batch_first=True)
        self.head = nn.Linear(256, 8)

    def forward(self, x):
        y, _ = self.gru(x)
        return self.head(y)


def series(n=48, t=36):
    phase = torch.rand(n, 1, 8) * 6.28
    return torch.sin(torch.arange(t + 1.0)[None, :, None] * 0.4 + phase) + 0.1 * torch.randn(
        n, t + 1, 8
    )


model, uploader = Forecaster(), Uploader()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
for step in range(900):
    x = series()
    predicted = model(x[:, :-1])
    loss = nn.functional.mse_loss(predicted, x[:, 1:])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    errors = (predicted - x[:, 1:]).detach().numpy().astype(np.float64)
    uploader.later(f"errors/{step}", [errors, np.abs(errors)])  # LEAK any _queue|scheduler
    uploader.poll()
    if step % 100 == 0:
        print(step, "loss", round(loss.item(), 4), "sent", uploader.sent)
