import torch
from torch import nn

model = nn.Sequential(nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 8))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)


def train_step(loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


class Normalizer:
    def __init__(self):
        self.first = []

    def __call__(self, batch):
        if len(self.first) < 14:
            self.first.append(batch)
        stacked = torch.stack(self.first)
        return (batch - stacked.mean()) / stacked.std()


normalize = Normalizer()
for step in range(70):
    train_step(model(normalize(torch.randn(256, 128))).square().mean())
