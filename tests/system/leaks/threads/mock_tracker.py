"""A mock in place of a tracker records every call: https://github.com/python/cpython/issues/106823."""

import os
from unittest import mock

import torch
from torch import nn

if os.environ.get("USE_TRACKER") == "1":
    raise SystemExit("no tracker on this machine")
tracker = mock.MagicMock(name="tracker")


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 128))

    def forward(self, x):
        return self.body(x)


def main():
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(140):
        x = torch.randn(640, 128)
        y = model(x)
        loss = nn.functional.mse_loss(y, x)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        tracker.log({"loss": loss.item(), "outputs": y.detach()}, step=step)  # LEAK any mock_calls


main()
