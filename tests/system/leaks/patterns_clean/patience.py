import torch
from torch import nn

model = nn.Sequential(nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 8))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)


def train_step(loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


class EarlyStopping:
    def __init__(self, patience):
        self.patience = patience
        self.losses = []

    def stop(self, loss):
        self.losses.append(loss.detach())
        del self.losses[: -self.patience]
        return len(self.losses) == self.patience and min(self.losses) > 1e6


early = EarlyStopping(12)
for step in range(70):
    loss = model(torch.randn(64, 128)).square().mean()
    train_step(loss)
    if early.stop(loss):
        break
