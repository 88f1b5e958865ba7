import torch
from torch import nn

model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)


def train_step(loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


class Norm(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("history", torch.zeros(1, 8))
        self.net = model

    def forward(self, x):
        y = self.net(x)
        with torch.no_grad():
            stacked = torch.cat([self.history, y.mean(0, keepdim=True)], dim=0)
            self.history = stacked  # LEAK buffer Norm.history
        return y


norm = Norm()
for _ in range(40):
    train_step(norm(torch.randn(16, 32)).pow(2).mean())
