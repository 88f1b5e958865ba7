import torch
from torch import nn

model = nn.Sequential(nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 8))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)


def train_step(loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def batches():
    seen = []
    while True:
        batch = torch.randn(512, 128)
        seen.append(batch)  # LEAK list seen
        yield batch - torch.stack(seen[-4:]).mean()


stream = batches()
for step in range(70):
    train_step(model(next(stream)).square().mean())
