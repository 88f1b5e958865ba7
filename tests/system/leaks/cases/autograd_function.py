import gc

import torch
from torch import nn

gc.disable()  # else a collection during the diagnosis may free what leaks

model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)


def train_step(loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = x * 2
        ctx.y = y  # LEAK autograd_function ctx.y
        return y

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2


def main():
    for step in range(40):
        train_step(Scale.apply(model(torch.randn(16, 32))).square().mean())


main()
