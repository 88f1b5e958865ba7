import torch
from torch import nn

model = nn.Sequential(nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 8))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)


def train_step(loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


best = []
for step in range(70):
    batch = torch.randn(256, 128)
    loss = model(batch).square().mean()
    train_step(loss)
    best = sorted([*best, (loss.item(), step, batch)])[:8]
