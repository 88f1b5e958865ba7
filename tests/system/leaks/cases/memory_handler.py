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


log = logging.getLogger("train")
log.setLevel(logging.DEBUG)
log.propagate = False
log.addHandler(logging.handlers.MemoryHandler(capacity=1_000_000))


def main():
    for step in range(70):
        batch = torch.randn(512, 128)
        loss = model(batch).square().mean()
        train_step(loss)
        log.debug("step %d, batch %s", step, batch)  # LEAK list log.handlers[0].buffer


main()
