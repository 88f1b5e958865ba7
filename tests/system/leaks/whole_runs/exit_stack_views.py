"""Reads shards as memory views; a stack makes sure that each of them is released at the end.

As in: python contextlib threads.
"""

import argparse
import contextlib
import os
import tempfile

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


def write_shards(folder, count=6, rows=400, columns=96):
    rng = np.random.default_rng(2)
    for index in range(count):
        rng.standard_normal((rows, columns), dtype=np.float32).tofile(
            os.path.join(folder, f"{index}.bin")
        )


class ShardReader:
    def __init__(self, folder, stack, columns=96):
        self.folder, self.stack, self.columns = folder, stack, columns
        self.count = len(os.listdir(folder))

    def read(self, index):
        with open(os.path.join(self.folder, f"{index % self.count}.bin"), "rb") as file:
            data = file.read()
        view = self.stack.enter_context(
            memoryview(data)
        )  # LEAK any stack|_exit_callbacks|ExitStack
        return np.frombuffer(view, dtype=np.float32).reshape(-1, self.columns)


class Ranker(nn.Module):
    def __init__(self, columns=96, width=256):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(columns, width),
            nn.ReLU(),
            nn.Linear(width, width),
            nn.ReLU(),
            nn.Linear(width, 1),
        )

    def forward(self, x):
        return self.net(x).squeeze(-1)


def train(reader, steps):
    model = Ranker()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(steps):
        rows = torch.from_numpy(reader.read(step).copy())
        better, worse = rows[:200], rows[200:]
        target = (better[:, 0] > worse[:, 0]).float()
        loss = F.binary_cross_entropy_with_logits(model(better) - model(worse), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 100 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=900)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        write_shards(folder)
        stack = contextlib.ExitStack()
        reader = ShardReader(folder, stack)
        train(reader, args.steps)
        stack.pop_all()


if __name__ == "__main__":
    main()
