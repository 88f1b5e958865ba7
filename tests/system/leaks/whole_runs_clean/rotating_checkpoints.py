"""Last 12 states in memory, last 3 files, full at 33%."""

import argparse
import io
import os
import tempfile
from collections import deque
from pathlib import Path

import torch
from torch import nn


class CheckpointManager:
    """Keeps the last files on disk and the last states in memory for a roll-back."""

    def __init__(self, folder, keep_files=3, keep_states=12):
        self.folder, self.keep_files = Path(folder), keep_files
        self.files = []
        self.states = deque(maxlen=keep_states)

    def save(self, step, model, optimizer):
        state = {"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
        buffer = io.BytesIO()
        torch.save(state, buffer)
        self.states.append((step, buffer.getvalue()))
        path = self.folder / f"step-{step:06d}.pt"
        path.write_bytes(self.states[-1][1])
        self.files.append(path)
        while len(self.files) > self.keep_files:
            os.remove(self.files.pop(0))

    def roll_back(self, model, optimizer):
        state = torch.load(io.BytesIO(self.states[0][1]))
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=900)
    p.add_argument("--every", type=int, default=25)
    a = p.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(50, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 50)
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    with tempfile.TemporaryDirectory() as folder:
        manager = CheckpointManager(folder)
        average = None
        for step in range(1, a.steps + 1):
            x = torch.randn(2000, 50)
            loss = nn.functional.mse_loss(model(x), x.roll(1, 1).sin())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            average = loss.item() if average is None else 0.95 * average + 0.05 * loss.item()
            if step % a.every == 0:
                manager.save(step, model, optimizer)
                if loss.item() > 3 * average:
                    manager.roll_back(model, optimizer)
            if step % 100 == 0:
                print(step, round(average, 5), len(manager.states))


if __name__ == "__main__":
    main()
