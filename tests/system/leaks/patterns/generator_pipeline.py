import torch
from torch import nn

model = nn.Sequential(nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 8))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)


def train_step(loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


class Pipeline:
    def __init__(self, source):
        self.source = source

    def normalized(self):
        history = []
        for x in self.source:
            history.append(x)  # LEAK list history
            yield (x - history[0].mean()) / x.std()

    def __iter__(self):
        for x in self.normalized():
            yield x.clamp(-3, 3)


def train(loader):
    for step, batch in enumerate(loader):
        train_step(model(batch).square().mean())
        if step == 70:
            break


train(Pipeline(torch.randn(512, 128) for _ in range(200)))
