"""Draws the loss curve every few steps and closes the figure again."""

import argparse
import io

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import torch
import torch.nn as nn
import torch.nn.functional as F


class Net(nn.Module):
    def __init__(self, width=416):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(64, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 8)
        )

    def forward(self, x):
        return self.net(x)


class CurvePlotter:
    def __init__(self):
        self.losses = []
        self.png = b""

    def add(self, loss):
        self.losses.append(loss)

    def draw(self):
        figure, axes = plt.subplots(1, 2, figsize=(7, 3))
        axes[0].plot(self.losses)
        axes[0].set_yscale("log")
        axes[1].hist(self.losses[-200:], bins=30)
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png", dpi=80)
        plt.close(figure)
        self.png = buffer.getvalue()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=700)
    parser.add_argument("--draw-every", type=int, default=12)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(2)
    model, plotter = Net(), CurvePlotter()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for step in range(args.steps):
        x = torch.randn(160, 64, generator=generator)
        loss = F.cross_entropy(model(x), x[:, :8].argmax(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        plotter.add(loss.item())
        if step % args.draw_every == 0:
            plotter.draw()
        if step % 100 == 0:
            print(f"step {step} loss {loss.item():.4f} png {len(plotter.png)}", flush=True)


if __name__ == "__main__":
    main()
