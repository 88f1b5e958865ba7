import torch
from torch import nn

model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)


def train_step(loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def main():
    checks = []
    for step in range(40):
        batch = torch.randn(16, 32)
        train_step(model(batch).square().mean())
        add_check(checks, batch)


def add_check(checks, batch):
    def check():
        return float(model(batch).mean())

    checks.append(check)  # LEAK closure checks


main()
