"""A moving average of gradients made with create_graph: https://github.com/metaopt/torchopt/issues/218."""

import torch
from torch import nn


class NoiseScale:
    """Estimates the gradient noise scale from a running mean of gradients."""

    def __init__(self, parameters, beta=0.95):
        self.parameters = list(parameters)
        self.beta = beta
        self.mean = None
        self.square = 0.0

    def update(self, grads):
        flat = torch.cat([g.reshape(-1) for g in grads])
        if self.mean is None:
            self.mean = torch.zeros_like(flat)
        self.mean = self.beta * self.mean + (1 - self.beta) * flat  # LEAK any NoiseScale.mean
        self.square = self.beta * self.square + (1 - self.beta) * flat.norm().item() ** 2

    def value(self):
        return self.square / (self.mean.norm().item() ** 2 + 1e-8)


def build():
    return nn.Sequential(
        nn.Linear(32, 128), nn.Tanh(), nn.Linear(128, 128), nn.Tanh(), nn.Linear(128, 4)
    )


def main():
    model = build()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    noise = NoiseScale(model.parameters())
    for step in range(140):
        x = torch.randn(256, 32)
        y = x[:, :4].sin()
        loss = nn.functional.mse_loss(model(x), y)
        grads = torch.autograd.grad(loss, noise.parameters, create_graph=True)
        noise.update(grads)
        for p, g in zip(noise.parameters, grads):
            p.grad = g.detach()
        optimizer.step()
        if step % 20 == 0:
            print(f"{step}: {loss.item():.4f}, noise scale {noise.value():.2f}")


main()
