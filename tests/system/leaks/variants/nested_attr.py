import torch
from torch import nn

model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)


def train_step(loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


class Log:
    def __init__(self):
        self.scalars = {}


class Exp:
    def __init__(self):
        self.log = Log()


def track(exp, name, value, step):
    exp.log.scalars.setdefault(name, {})[step] = value  # LEAK dict Log.scalars


exp = Exp()
for i in range(40):
    loss = model(torch.randn(16, 32)).pow(2).mean()
    train_step(loss)
    track(exp, "loss", loss, i)
