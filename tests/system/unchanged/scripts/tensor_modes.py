"""Modes and subclasses that see every call on tensors, in training and around it."""
from collections import Counter

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

calls = Counter()


class Functions(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        calls[getattr(func, "__name__", str(func))] += 1
        return func(*args, **(kwargs or {}))


class Operators(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        calls[str(func)] += 1
        return func(*args, **(kwargs or {}))


class Logged(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        calls["logged " + getattr(func, "__name__", str(func))] += 1
        return super().__torch_function__(func, types, args, kwargs or {})


torch.manual_seed(52)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
# memagent.attach(model, optimizer)


def train(steps, make=lambda x: x):
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model(make(torch.randn(4, 4))).pow(2).mean()
        loss.backward()
        optimizer.step()
    print(loss.item(), sorted(calls.items()))
    calls.clear()


with Functions():
    train(3)
with Operators():
    train(3)
train(3, lambda x: x.as_subclass(Logged))
with FlopCounterMode(display=False) as flops:
    train(2)
print(flops.get_flop_counts())
with torch.device("cpu"):
    train(2)
import warnings

warnings.simplefilter("ignore")
with torch.autograd.set_detect_anomaly(True), torch.autograd.graph.save_on_cpu():
    train(2)
