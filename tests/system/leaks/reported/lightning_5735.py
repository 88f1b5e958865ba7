"""Told in https://github.com/Lightning-AI/pytorch-lightning/issues/5735: a loop caches the outputs of every step."""

import torch
from torch import nn

model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)


def train_step(loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


class Loop:
    def __init__(self, trainer):
        self.trainer = trainer
        self.outputs = []

    def run(self, step, batches):
        for batch in batches:
            output = step(batch)
            self.keep(output)

    def keep(self, output):
        if output is not None:
            self.outputs.append(output)  # LEAK list Loop.outputs


class Trainer:
    def __init__(self):
        self.loop = Loop(self)

    def step(self, batch):
        loss = model(batch).square().mean()
        train_step(loss)
        return {"loss": loss.detach(), "batch": batch}


trainer = Trainer()
trainer.loop.run(trainer.step, (torch.rand(16, 32) for _ in range(40)))
