"""Train an autoencoder with a straight-through quantizer that is an autograd function."""

import torch
from torch import nn


class Quantize(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, levels):
        rounded = torch.round(x * levels) / levels
        ctx.rounded = rounded
        ctx.levels = levels
        return rounded

    @staticmethod
    def backward(ctx, grad):
        inside = (ctx.rounded.abs() <= 4).to(grad.dtype)
        return grad * inside, None


class AutoEncoder(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.encode = nn.Sequential(nn.Linear(128, width), nn.Tanh(), nn.Linear(width, width))
        self.decode = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 128))

    def forward(self, x):
        code = Quantize.apply(self.encode(x), 16)
        return self.decode(code)


def train(steps: int) -> None:
    torch.manual_seed(1)
    model = AutoEncoder(512)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for step in range(steps):
        batch = torch.randn(320, 128)
        loss = (model(batch) - batch).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 50 == 0:
            print(f"{step}: {loss.item():.4f}")


train(600)
