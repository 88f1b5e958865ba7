import torch
from torch import nn

model = nn.Sequential(nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 8))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)


def train_step(loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


scheduler = torch.optim.lr_scheduler.SequentialLR(
    optimizer,
    [
        torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=10),
        torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=60),
    ],
    milestones=[10],
)
rates, losses = [], []
for step in range(70):
    loss = model(torch.randn(64, 128)).square().mean()
    train_step(loss)
    scheduler.step()
    rates.append(scheduler.get_last_lr()[0])
    losses.append(loss.item())
