"""Paints the weights of each step next to those of the steps before."""

import argparse

import numpy as np
from PIL import Image
import torch
import torch.nn as nn
import torch.nn.functional as F


class Strip:
    """A picture with a column of pixels for each step."""

    def __init__(self, height):
        self.picture = Image.new("RGB", (1, height))

    def paint(self, values):
        column = Image.fromarray(values).convert("RGB")
        wider = Image.new("RGB", (self.picture.width + column.width, self.picture.height))
        wider.paste(self.picture, (0, 0))
        wider.paste(column, (self.picture.width, 0))
        self.picture = wider  # LEAK any picture


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
    strip = Strip(384)
    for step in range(args.steps):
        x = torch.randn(192, 64, generator=generator)
        y = x[:, :8].argmax(1)
        logits = model(x)
        loss = F.cross_entropy(logits, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        weights = model[2].weight.detach().numpy()[:, :16]
        strip.paint((weights * 2000).clip(-120, 120).astype(np.int8).view(np.uint8) + 128)
        if step % 100 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
