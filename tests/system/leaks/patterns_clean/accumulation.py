import torch
from torch import nn

model = nn.Sequential(nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 8))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)


def train_step(loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


running = 0.0
for step in range(70):
    optimizer.zero_grad()
    for part in range(4):
        loss = model(torch.randn(64, 128)).square().mean() / 4
        loss.backward()
        running = 0.9 * running + 0.1 * loss.item()
    optimizer.step()
