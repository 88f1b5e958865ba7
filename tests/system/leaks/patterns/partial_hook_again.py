from functools import partial

import torch
from torch import nn

model = nn.Sequential(nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 8))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)


def train_step(loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def scale_by(batch, module, inputs, output):
    return output / (1 + batch.norm())


def main():
    for step in range(70):
        batch = torch.randn(512, 128)
        model[2].register_forward_hook(partial(scale_by, batch))  # LEAK hook hook
        train_step(model(batch).square().mean())


main()
