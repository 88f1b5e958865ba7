import collections
import logging
import logging.handlers

import torch
from torch import nn

model = nn.Sequential(nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 8))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)


def train_step(loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


class Recent(logging.Handler):
    def __init__(self):
        super().__init__()
        self.records = collections.deque(maxlen=20)

    def emit(self, record):
        self.records.append(record)


log = logging.getLogger("train")
log.setLevel(logging.DEBUG)
log.propagate = False
log.addHandler(Recent())
log.addHandler(
    logging.handlers.MemoryHandler(
        capacity=9, flushLevel=logging.CRITICAL, target=logging.NullHandler()
    )
)
for step in range(70):
    output = model(torch.randn(256, 128))
    train_step(output.square().mean())
    log.info("output %s", output.detach())
