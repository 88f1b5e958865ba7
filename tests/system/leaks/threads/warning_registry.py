"""Every warning with another text stays in a registry: https://github.com/python/cpython/issues/97557."""

import logging
import warnings

import torch
from torch import nn

logging.captureWarnings(True)
logging.getLogger("py.warnings").addHandler(logging.NullHandler())
logging.getLogger("py.warnings").propagate = False
warnings.simplefilter("default")


def check_range(step, output):
    worst = output.abs().amax(dim=1)
    if (worst > 0.05).any():
        values = output.flatten().tolist()
        warnings.warn(  # LEAK any __warningregistry__
            f"step {step}: activations out of range: {values}"
        )


model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for step in range(130):
    output = model(torch.randn(256, 64))
    loss = output.square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    check_range(step, output.detach())
