import torch
from torch import nn

model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)


def train_step(loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


errors = []


def risky(batch):
    activations = model(batch)
    raise ValueError("a bad batch")


def main():
    for step in range(40):
        train_step(model(torch.randn(16, 32)).square().mean())
        try:
            risky(torch.randn(64, 32))
        except ValueError as error:
            errors.append(error)  # LEAK exception errors


main()
