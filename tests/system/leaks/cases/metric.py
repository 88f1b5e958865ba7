import torch
from torch import nn

model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)


def train_step(loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


class Accuracy:
    """Keeps every prediction until compute()."""

    def __init__(self):
        self.predictions, self.targets = [], []

    def update(self, prediction, target):
        self.predictions += [prediction.detach()]  # LEAK list Accuracy.predictions
        self.targets += [int(target[0])]

    def compute(self):
        return torch.cat(self.predictions).mean()


def main():
    metric = Accuracy()
    for step in range(40):
        output = model(torch.randn(16, 32))
        train_step(output.square().mean())
        metric.update(output, torch.zeros(16))


main()
