import torch
from torch import nn

model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)


def train_step(loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


class Runner:
    def __init__(self):
        self.failures = {}

    def run(self, i):
        x = torch.randn(64, 32)
        try:
            y = model(x)
            raise RuntimeError("nan")
        except RuntimeError as e:
            self.failures[i] = e  # LEAK exception Runner.failures


r = Runner()
for i in range(40):
    train_step(model(torch.randn(16, 32)).pow(2).mean())
    r.run(i)
