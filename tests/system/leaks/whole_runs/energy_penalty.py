"""Energy-based model with a gradient penalty on the inputs (double backward).

As in: pytorch/pytorch#4661, #16744.
"""

import argparse

import torch
import torch.nn as nn


class Energy(nn.Module):
    def __init__(self, inputs=128, width=384):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(inputs, width),
            nn.Tanh(),
            nn.Linear(width, width),
            nn.Tanh(),
            nn.Linear(width, 1),
        )

    def forward(self, x):
        return self.net(x).squeeze(-1)


class Trainer:
    def __init__(self, model, lr=3e-4, penalty=0.1):
        self.model = model
        self.optimizer = torch.optim.Adam(model.parameters(), lr=lr)
        self.penalty = penalty

    def gradient_norm(self, points):
        """Norm of dE/dx at `points`, differentiable with respect to the weights."""
        points = points.clone().requires_grad_(True)
        energy = self.model(points).sum()
        energy.backward(
            create_graph=True
        )  # LEAK any grad|.grad|autograd|graph|cycle|create_graph|points
        return points.grad.pow(2).sum(
            1
        )  # LEAK any grad|.grad|autograd|graph|cycle|create_graph|points

    def step(self, real, noise):
        self.optimizer.zero_grad(set_to_none=True)
        norm = self.gradient_norm(real)
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.model(real).mean() - self.model(noise).mean() + self.penalty * norm.mean()
        loss.backward()
        self.optimizer.step()
        return float(loss.detach())


def sample(size, generator, inputs=128):
    centre = torch.randint(0, 2, (size, 1), generator=generator).float() * 2 - 1
    return centre + 0.3 * torch.randn(size, inputs, generator=generator)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=800)
    parser.add_argument("--batch", type=int, default=96)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(3)
    trainer = Trainer(Energy())
    for step in range(args.steps):
        real = sample(args.batch, generator)
        noise = torch.randn(args.batch, 128, generator=generator)
        loss = trainer.step(real, noise)
        if step % 100 == 0:
            print(f"step {step} loss {loss:.4f}", flush=True)


if __name__ == "__main__":
    main()
