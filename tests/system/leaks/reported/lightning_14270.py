"""Told in https://github.com/Lightning-AI/pytorch-lightning/issues/14270: results of validation are collected and never cleared."""

import torch
from torch import nn

model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)


def train_step(loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


class Module:
    def __init__(self):
        self.val_accuracy_results = []

    def training_step(self, batch):
        return model(batch).square().mean()

    def validation_step(self, batch):
        with torch.no_grad():
            accuracy = (model(batch) > 0).float().mean(dim=1)
        self.val_accuracy_results.append(accuracy)  # LEAK list Module.val_accuracy_results


class Trainer:
    def fit(self, module):
        for _ in range(60):
            train_step(module.training_step(torch.rand(16, 32)))
            module.validation_step(torch.rand(16, 32))


Trainer().fit(Module())
