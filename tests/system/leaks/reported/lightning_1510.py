"""Told in https://github.com/Lightning-AI/pytorch-lightning/issues/1510: outputs of an epoch, detached but still on the device."""

import torch
from torch import nn

model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)


def train_step(loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def run_training_epoch(batches):
    batch_outputs = [[] for _ in range(2)]
    for number, batch in enumerate(batches):
        output = model(batch)
        train_step(output.square().mean())
        for opt_index, opt_outputs in enumerate(batch_outputs):
            if opt_index == number % 1:
                opt_outputs.append(output.detach())  # LEAK list batch_outputs


run_training_epoch(torch.rand(16, 32) for _ in range(40))
