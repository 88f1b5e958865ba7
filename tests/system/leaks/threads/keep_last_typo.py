"""Old checkpoints are removed under a key that never matches. Checkpoints in memory as in
https://github.com/lucidrains/ema-pytorch/issues/35."""

# WINDOW 60
import copy

import torch
from torch import nn


class CheckpointKeeper:
    def __init__(self, model, keep=3, every=5):
        self.model, self.keep, self.every = model, keep, every
        self.checkpoints = {}

    def on_step_end(self, step):
        if step % self.every:
            return
        state = {"step": step, "model": copy.deepcopy(self.model.state_dict())}
        self.checkpoints[f"step-{step}"] = state  # LEAK any CheckpointKeeper.checkpoints
        self.checkpoints.pop(step - self.keep * self.every, None)


def main():
    model = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 256))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    keeper = CheckpointKeeper(model)
    for step in range(160):
        x = torch.randn(64, 256)
        loss = (model(x) - x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        keeper.on_step_end(step)


main()
