"""The members of an Enum carry state for the whole run. A pattern of trainers with phases, as in
https://discuss.pytorch.org/t/how-to-debug-causes-of-gpu-memory-leaks/6741/22."""

import enum

import torch
from torch import nn


class Phase(enum.Enum):
    TRAIN = "train"
    VALIDATE = "validate"

    def __init__(self, label):
        self.label = label
        self.results = []

    def record(self, outputs, targets):
        self.results.append((outputs.detach(), targets))  # LEAK any results

    def accuracy(self):
        hits = [(o.argmax(1) == t).float().mean() for o, t in self.results]
        return torch.stack(hits).mean().item()


def run(phase, model, optimizer, features, targets):
    outputs = model(features)
    loss = nn.functional.cross_entropy(outputs, targets)
    if phase is Phase.TRAIN:
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    phase.record(outputs, targets)
    return loss.item()


def main():
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 100))
    optimizer = torch.optim.AdamW(model.parameters())
    for epoch in range(5):
        for _ in range(30):
            run(
                Phase.TRAIN, model, optimizer, torch.randn(1024, 64), torch.randint(0, 100, (1024,))
            )
        with torch.no_grad():
            run(Phase.VALIDATE, model, None, torch.randn(64, 64), torch.randint(0, 100, (64,)))
        print(epoch, Phase.TRAIN.accuracy())


main()
