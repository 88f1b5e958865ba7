"""Hooks stay on the model if the block raises: https://github.com/huggingface/peft/issues/3475."""

import contextlib
import functools
import random

import torch
from torch import nn


def select_adapter(module, args, *, mask):
    if args[0].shape[0] == mask.shape[0]:
        return (args[0] * mask.mean(),)
    return None


class MixedModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(128, 128) for _ in range(3))

    def forward(self, x):
        if x.isnan().any():
            raise ValueError("nan in the batch")
        for layer in self.layers:
            x = torch.relu(layer(x))
        return x

    @contextlib.contextmanager
    def adapter(self, mask):
        handles = []
        for layer in self.layers:
            pre_forward = functools.partial(select_adapter, mask=mask)
            handles.append(layer.register_forward_pre_hook(pre_forward))  # LEAK any hook
        yield
        for handle in handles:
            handle.remove()


def main():
    random.seed(3)
    model = MixedModel()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    skipped = 0
    for step in range(160):
        x = torch.randn(256, 128)
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        # Generation with an adapter chosen per row.
        rows = torch.randn(240, 128)
        if random.random() < 0.6:
            rows[0, 0] = float("nan")
        try:
            with model.adapter(torch.rand(240, 1024)), torch.no_grad():
                model(rows)
        except ValueError:
            skipped += 1
    print("skipped", skipped)


main()
