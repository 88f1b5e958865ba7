from collections import defaultdict

import torch
from torch import nn

model = nn.Sequential(nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 8))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)


def train_step(loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


stats = defaultdict(lambda: defaultdict(list))


def note(epoch, **values):
    for name, value in values.items():
        stats[epoch][name].append(value.detach())  # LEAK any stats


for epoch in range(7):
    for step in range(10):
        output = model(torch.randn(512, 128))
        loss = output.square().mean()
        train_step(loss)
        note(epoch, output=output, loss=loss)
