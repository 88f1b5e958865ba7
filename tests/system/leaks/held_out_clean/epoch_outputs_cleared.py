"""Outputs of an epoch of 60 steps are gathered for its metric, then cleared."""

import sys

import torch
from torch import nn

STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 300
# CONFIRM 80
EPOCH = 60


class LitModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 32))
        self.training_step_outputs = []

    def training_step(self, x):
        out = self.net(x)
        self.training_step_outputs.append({"out": out.detach(), "norm": out.detach().norm(dim=1)})
        return (out - x[:, :32]).pow(2).mean()

    def on_train_epoch_end(self):
        everything = torch.cat([o["out"] for o in self.training_step_outputs])
        print("spread", everything.std().item())
        self.training_step_outputs.clear()


class Trainer:
    def fit(self, model):
        optimizer = torch.optim.Adam(model.parameters())
        for step in range(STEPS):
            loss = model.training_step(torch.randn(512, 64))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % EPOCH == EPOCH - 1:
                model.on_train_epoch_end()


Trainer().fit(LitModel())
