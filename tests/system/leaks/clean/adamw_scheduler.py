import torch
from torch import nn

model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)


def train_step(loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


sched = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100)
scaler = torch.amp.GradScaler("cpu", enabled=False)
best = None
for i in range(60):
    loss = model(torch.randn(16, 32)).pow(2).mean()
    train_step(loss)
    sched.step()
    if best is None or loss < best:
        best = loss.detach()
    if i % 10 == 0:
        last_eval = [model(torch.randn(4, 32)) for _ in range(5)]
