# Thread: pytorch/torchtitan utils.GarbageCollection (gc.disable() and gc.collect(1) each N steps) and
# Project-MONAI/MONAI#7727 / pytorch/ignite#3438 (reference cycles that keep tensors).
# Pattern: automatic collection is off, and the manual one covers generation 1 only. Every step makes a
# cycle (an object with a bound method of its own) that holds activations; those that were alive at a
# manual collection are in the oldest generation and stay. Here the trace of each microbatch is kept for
# some steps by a ring, so that nearly all get old.
# Expected: a cycle. The line that closes the cycle, or gc.disable()/gc.collect(1); holder names the
# class (StepTrace) or its attribute (report/state).
import gc
from collections import deque

import memagent
import torch
from torch import nn


class GarbageCollection:
    def __init__(self, gc_freq=8):
        self.gc_freq = gc_freq
        gc.disable()  # LEAK any gc|cycle|StepTrace|report|state
        gc.collect(1)

    def run(self, step_count):
        if step_count > 1 and step_count % self.gc_freq == 0:
            gc.collect(1)  # LEAK any gc|cycle|StepTrace|report|state


class StepTrace:
    def __init__(self, step, hidden):
        self.step = step
        self.state = {"hidden": hidden, "owner": self}  # LEAK any cycle|StepTrace|report|state
        self.report = self.summary  # LEAK any cycle|StepTrace|report|state

    def summary(self):
        return {"step": self.step, "norm": self.state["hidden"].norm().item()}


class Block(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.norm = nn.LayerNorm(d)
        self.up = nn.Linear(d, 4 * d)
        self.down = nn.Linear(4 * d, d)

    def forward(self, x):
        return x + self.down(torch.nn.functional.silu(self.up(self.norm(x))))


def train():
    model = nn.Sequential(*[Block(96) for _ in range(2)])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    memagent.attach(model, optimizer)
    collector = GarbageCollection(gc_freq=8)
    recent = deque(maxlen=24)
    for step in range(1, 701):
        collector.run(step)
        x = torch.randn(128, 96)
        hidden = model(x)
        loss = (hidden - x.roll(1, 0)).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        recent.append(StepTrace(step, hidden.detach()))
        if step % 100 == 0:
            print(recent[-1].report())


train()
