import torch
from torch import nn

model = nn.Sequential(nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 8))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)


def train_step(loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


cell = nn.GRUCell(128, 128)
hidden = torch.zeros(64, 128)
for step in range(70):
    hidden = cell(torch.randn(64, 128), hidden)
    if step % 5 == 4:
        train_step(model(hidden).square().mean())
        hidden = hidden.detach()
    else:
        train_step(model(torch.randn(64, 128)).square().mean())
