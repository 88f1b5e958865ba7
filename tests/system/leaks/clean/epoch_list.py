import torch
from torch import nn

model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)


def train_step(loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


epoch = []
for i in range(60):
    y = model(torch.randn(16, 32))
    train_step(y.pow(2).mean())
    epoch.append(y.detach())
    if len(epoch) == 5:
        epoch.clear()
