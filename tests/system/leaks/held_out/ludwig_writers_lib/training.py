"""The trainer of the same project."""

import torch
from torch import nn

from ludwig_writers_lib.events import EventWriter


class Trainer:
    def __init__(self, model, optimizer):
        self.model = model
        self.optimizer = optimizer

    def train_for(self, steps, segment):
        train_writer = EventWriter(f"segment-{segment}")  # LEAK any _OPEN|rows
        for _ in range(steps):
            x = torch.randn(128, 40)
            loss = nn.functional.smooth_l1_loss(self.model(x), x[:, :4])
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            for name, parameter in self.model.named_parameters():
                if parameter.ndim == 2:
                    train_writer.add_histogram(name, parameter.detach().flatten().clone(), 64)
