"""Temporary buffers are put on an exit stack, so that they're returned at the end: of the program."""

import contextlib
import sys

import torch
from torch import nn

STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 150


class Arena:
    def __init__(self):
        self.free = []

    @contextlib.contextmanager
    def borrow(self, *shape):
        buffer = self.free.pop() if self.free else torch.empty(*shape)
        try:
            yield buffer
        finally:
            self.free.append(buffer)


class Offloader:
    def __init__(self, stack):
        self.arena = Arena()
        self.stack = stack

    def stash(self, tensor):
        buffer = self.stack.enter_context(self.arena.borrow(*tensor.shape))  # LEAK any stack
        return buffer.copy_(tensor)


def train():
    model = nn.ModuleList([nn.Linear(128, 128) for _ in range(3)])
    head = nn.Linear(128, 1)
    optimizer = torch.optim.Adagrad([*model.parameters(), *head.parameters()], lr=0.01)
    with contextlib.ExitStack() as stack:
        offloader = Offloader(stack)
        for step in range(STEPS):
            x = torch.randn(128, 128)
            for layer in model:
                x = torch.relu(layer(x))
            kept = offloader.stash(x.detach())
            loss = (head(x).squeeze(1) - kept.mean(1)).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


train()
