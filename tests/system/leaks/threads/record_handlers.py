"""Each test state adds its own record handler to a shared logger.

As in https://github.com/google/openhtf/issues/144.
"""

import torch
from torch import nn
import logging


LOGGER = logging.getLogger("experiment.records")
LOGGER.setLevel(logging.DEBUG)
LOGGER.propagate = False


class RecordHandler(logging.Handler):
    def __init__(self, records):
        super().__init__()
        self.records = records

    def emit(self, record):
        self.records.append((record.created, record.getMessage(), record.args))


class RunState:
    def __init__(self, name):
        self.name, self.records = name, []
        LOGGER.addHandler(RecordHandler(self.records))  # LEAK any handlers

    def finish(self, outcome):
        LOGGER.info("%s ended with %s", self.name, outcome)


model = nn.Linear(40, 40)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(150):
    state = RunState(f"step-{step}")
    x = torch.randn(32, 40)
    loss = (model(x) - x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    state.finish(loss.detach())
