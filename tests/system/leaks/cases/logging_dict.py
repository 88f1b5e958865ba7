import torch
from torch import nn

model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)


def train_step(loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


class Logger:
    def __init__(self):
        self.rows = {}

    def log(self, step, **values):
        row = self.rows.setdefault(step, {})
        row.update(values)


def main():
    records = []
    for step in range(40):
        loss = model(torch.randn(16, 32)).square().mean()
        train_step(loss)
        record = {"step": step, "loss": loss}
        records.append(record)  # LEAK list records


main()
