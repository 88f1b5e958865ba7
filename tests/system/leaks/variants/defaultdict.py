import torch
from torch import nn

model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)


def train_step(loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


from collections import defaultdict


class Meter:
    def __init__(self):
        self.values = defaultdict(list)

    def update(self, **kw):
        for k, v in kw.items():
            self.values[k].append(v)  # LEAK list Meter.values


m = Meter()
for _ in range(40):
    loss = model(torch.randn(16, 32)).pow(2).mean()
    train_step(loss)
    m.update(loss=loss.detach(), acc=loss.detach() + 1)
