"""Activation checkpointing saves the generator's state before each block, for the recomputation, in
a list of the class that only its debug mode empties."""

import sys

import torch
from torch import nn

STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 150


class CheckpointFunction(torch.autograd.Function):
    states = []
    debug = False

    @staticmethod
    def forward(ctx, block, x, *parameters):
        CheckpointFunction.states.append(torch.get_rng_state())  # LEAK any states
        ctx.block = block
        ctx.slot = len(CheckpointFunction.states) - 1
        ctx.save_for_backward(x)
        with torch.no_grad():
            return block(x)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        x = x.detach().requires_grad_()
        now = torch.get_rng_state()
        torch.set_rng_state(CheckpointFunction.states[ctx.slot])
        with torch.enable_grad():
            out = ctx.block(x)
        torch.set_rng_state(now)
        torch.autograd.backward(out, grad)
        if CheckpointFunction.debug:
            CheckpointFunction.states.pop()
        return None, x.grad, *([None] * len(list(ctx.block.parameters())))


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.net = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, width * 2), nn.GELU(), nn.Dropout(0.1)
        )
        self.out = nn.Linear(width * 2, width)

    def forward(self, x):
        return x + self.out(self.net(x))


blocks = nn.ModuleList(Block(48) for _ in range(10))
head = nn.Linear(48, 1)
optimizer = torch.optim.AdamW([*blocks.parameters(), *head.parameters()], lr=1e-3)
for step in range(STEPS):
    x = torch.randn(32, 48, requires_grad=True)
    hidden = x
    for block in blocks:
        hidden = CheckpointFunction.apply(block, hidden, *block.parameters())
    loss = (head(hidden).squeeze(1) - x.detach().sum(1)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
