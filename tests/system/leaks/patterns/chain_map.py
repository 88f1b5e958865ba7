from collections import ChainMap

import torch
from torch import nn

model = nn.Sequential(nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 8))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)


def train_step(loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def main():
    scope = ChainMap({})
    for step in range(70):
        batch = torch.randn(512, 128)
        scope = scope.new_child({"batch": batch, "step": step})  # LEAK any scope
        train_step(model(scope["batch"]).square().mean())


main()
