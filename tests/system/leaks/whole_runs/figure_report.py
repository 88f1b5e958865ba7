"""Plots the residuals of a small regression during training.

As in: matplotlib/matplotlib#8519; tensorflow/models#3603.
"""

import argparse
import io

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import torch
import torch.nn as nn


class Net(nn.Module):
    def __init__(self, width=448):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(32, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, 1)
        )

    def forward(self, x):
        return self.net(x).squeeze(1)


class Report:
    """PNG pictures of residuals; the newest one is kept for the dashboard."""

    def __init__(self):
        self.latest = None

    def residuals(self, step, target, prediction):
        figure, axes = plt.subplots(
            figsize=(5, 4), dpi=90
        )  # LEAK any pyplot|Gcf|figs|figure|matplotlib
        axes.scatter(target.numpy(), (prediction - target).numpy(), s=3)
        axes.set_title(f"step {step}")
        axes.set_xlabel("target")
        axes.set_ylabel("residual")
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png")
        self.latest = buffer.getvalue()


def make_batch(generator, size):
    x = torch.randn(size, 32, generator=generator)
    return x, torch.sin(x[:, 0] * 2) + x[:, 1] * x[:, 2]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=800)
    parser.add_argument("--plot-every", type=int, default=8)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    plt.rcParams["figure.max_open_warning"] = 0
    generator = torch.Generator().manual_seed(0)
    model, report = Net(), Report()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for step in range(args.steps):
        x, y = make_batch(generator, 160)
        prediction = model(x)
        loss = (prediction - y).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % args.plot_every == 0:
            report.residuals(step, y, prediction.detach())
        if step % 100 == 0:
            print(f"step {step} loss {loss.item():.4f} png {len(report.latest)} bytes", flush=True)


if __name__ == "__main__":
    main()
