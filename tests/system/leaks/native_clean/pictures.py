"""Plots the losses now and then, and keeps the newest forty pictures."""

import argparse
import io
from collections import deque

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from PIL import Image
import torch
import torch.nn as nn
import torch.nn.functional as F


class Plots:
    def __init__(self):
        self.losses = []
        self.pictures = deque(maxlen=40)

    def draw(self):
        figure, axes = plt.subplots(figsize=(4, 3), dpi=60)
        axes.plot(self.losses)
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png")
        plt.close(figure)
        self.pictures.append(Image.open(io.BytesIO(buffer.getvalue())).convert("RGB"))


def network(inputs, width, outputs):
    return nn.Sequential(
        nn.Linear(inputs, width),
        nn.ReLU(),
        nn.Linear(width, width),
        nn.ReLU(),
        nn.Linear(width, outputs),
    )


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=90)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(5)
    model = network(64, 384, 8)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    plots = Plots()
    for step in range(args.steps):
        x = torch.randn(192, 64, generator=generator)
        y = x[:, :8].argmax(1)
        logits = model(x)
        loss = F.cross_entropy(logits, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        plots.losses.append(loss.item())
        if step % 4 == 0:
            plots.draw()
        if step % 100 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
