import logging

import torch
from torch import nn

model = nn.Sequential(nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 8))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)


def train_step(loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


class RecordHandler(logging.Handler):
    def __init__(self):
        super().__init__()
        self.records = []

    def emit(self, record):
        self.records.append(record)  # LEAK list RecordHandler.records


logger = logging.getLogger("train")
logger.setLevel(logging.INFO)
logger.propagate = False
logger.addHandler(RecordHandler())

for step in range(70):
    output = model(torch.randn(512, 128))
    train_step(output.square().mean())
    logger.info("output %s", output.detach())
