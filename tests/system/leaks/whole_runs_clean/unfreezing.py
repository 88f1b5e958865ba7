"""Gradual unfreezing: every 60 steps one more layer is trained, so optimizer state grows until all are."""

import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F


class Deep(nn.Module):
    def __init__(self, width=320, depth=8, classes=20):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.head = nn.Linear(width, classes)

    def forward(self, x):
        for layer in self.layers:
            x = x + F.relu(layer(x))
        return self.head(x)


class Unfreezer:
    """From the top down; a layer that joins gets its own parameter group."""

    def __init__(self, model, optimizer, every):
        self.model, self.optimizer, self.every = model, optimizer, every
        self.frozen = list(model.layers)
        for layer in self.frozen:
            layer.requires_grad_(False)

    def step(self, step):
        if self.frozen and step and step % self.every == 0:
            layer = self.frozen.pop()
            layer.requires_grad_(True)
            self.optimizer.add_param_group({"params": list(layer.parameters()), "lr": 3e-4})


@torch.no_grad()
def update_average(average, model, decay=0.99):
    for name, value in model.state_dict().items():
        if name in average:
            average[name].mul_(decay).add_(value, alpha=1 - decay)
        else:
            average[name] = value.clone()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--every", type=int, default=60)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(4)
    model, average = Deep(), {}
    optimizer = torch.optim.AdamW(model.head.parameters(), lr=1e-3)
    unfreezer = Unfreezer(model, optimizer, args.every)
    for step in range(args.steps):
        unfreezer.step(step)
        x = torch.randn(96, 320, generator=generator)
        loss = F.cross_entropy(model(x), (x[:, :20] - x[:, 20:40]).argmax(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        update_average(average, model)
        if step % 100 == 0:
            print(f"step {step} loss {loss.item():.4f} frozen {len(unfreezer.frozen)}", flush=True)


if __name__ == "__main__":
    main()
