import torch
from torch import nn

model = nn.Sequential(nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 8))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)


def train_step(loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


class Metric:
    def __init__(self):
        self.preds = []

    def update(self, preds):
        self.preds.append(preds.detach())

    def compute(self):
        result = torch.cat(self.preds).mean().item()
        self.preds.clear()
        return result


metric = Metric()
for step in range(70):
    output = model(torch.randn(256, 128))
    train_step(output.square().mean())
    metric.update(output)
    if step % 8 == 7:
        metric.compute()
