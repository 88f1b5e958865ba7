import torch
from torch import nn

model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)


def train_step(loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


class Trainer:
    def __init__(self):
        self.history = []
        self.steps = 0

    def fit(self, steps):
        for _ in range(steps):
            output = model(torch.randn(16, 32))
            train_step(output.square().mean())
            self.note(output)

    def note(self, output):
        self.steps += 1
        self.history.append(output.detach())  # LEAK list Trainer.history


Trainer().fit(40)
