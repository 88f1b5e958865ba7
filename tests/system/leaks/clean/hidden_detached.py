import torch
from torch import nn

model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)


def train_step(loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


cell = nn.GRUCell(8, 8)
h = torch.zeros(16, 8)
for i in range(60):
    h = cell(model(torch.randn(16, 32)), h.detach())
    train_step(h.pow(2).mean())
