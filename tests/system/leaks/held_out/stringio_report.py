"""A training report is written as text, into memory, with every weight's statistics."""

import csv
import io
import sys

import torch
from torch import nn

STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 150


class Report:
    def __init__(self):
        self.stream = io.StringIO()
        self.writer = csv.writer(self.stream)
        self.writer.writerow(["step", "name", "values"])

    def add(self, step, model):
        for name, parameter in model.named_parameters():
            values = [f"{value:.6e}" for value in parameter.detach().flatten()[:512].tolist()]
            self.writer.writerow([step, name, *values])  # LEAK any stream|writer|Report|report


def train(report):
    model = nn.Sequential(
        nn.Linear(32, 64), nn.Mish(), nn.Linear(64, 32), nn.Mish(), nn.Linear(32, 32)
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for step in range(STEPS):
        x = torch.randn(256, 32)
        loss = (model(x) - x.sort(1).values).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        report.add(step, model)


report = Report()
train(report)
print(len(report.stream.getvalue()))
