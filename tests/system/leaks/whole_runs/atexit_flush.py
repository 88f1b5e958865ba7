"""Saves evaluation curves; whatever was not written yet is flushed when the interpreter exits.

As in: python atexit threads.
"""

import argparse
import atexit
import os
import tempfile

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


class CurveStore:
    def __init__(self):
        self.folder = tempfile.mkdtemp(prefix="exam6_curves_")

    def write(self, name, array):
        np.save(os.path.join(self.folder, "last.npy"), array[:10])

    def save(self, step, scores):
        curve = np.sort(scores, axis=0)[::-1].copy()
        self.write("curve", curve)
        atexit.register(self.write, f"curve_{step}", curve)  # LEAK any atexit


class Wide(nn.Module):
    def __init__(self, inputs=128, width=512, outputs=64):
        super().__init__()
        self.up = nn.Linear(inputs, width)
        self.down = nn.Linear(width, outputs)

    def forward(self, x):
        return self.down(F.gelu(self.up(x)))


def train(args):
    generator = torch.Generator().manual_seed(23)
    model, store = Wide(), CurveStore()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    weights = torch.randn(128, 64, generator=generator)
    for step in range(args.steps):
        x = torch.randn(args.batch, 128, generator=generator)
        target = (x @ weights > 0).float()
        logits = model(x)
        loss = F.binary_cross_entropy_with_logits(logits, target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step >= 200 and step % 2 == 0:
            store.save(step, torch.sigmoid(logits.detach()).double().numpy())
        if step % 100 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--batch", type=int, default=256)
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    train(options)
