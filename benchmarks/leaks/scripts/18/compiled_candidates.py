"""Search formulas for features: each candidate is written as a function, with lines to trace."""

import linecache
import random

import torch
from torch import nn

OPERATIONS = ("x[{0}] * x[{1}]", "torch.sin(x[{0}] - x[{1}])", "x[{0}].clamp(min=-1) + x[{1}]")


class Compiler:
    def __init__(self) -> None:
        self.count = 0

    def compile(self, lines: list[str]):
        self.count += 1
        name = f"<candidate {self.count}>"
        text = "".join(lines)
        linecache.cache[name] = (len(text), None, lines, name)
        namespace = {"torch": torch}
        exec(compile(text, name, "exec"), namespace)
        return namespace["features"]


def write(draw: random.Random, width: int) -> list[str]:
    lines = ["def features(x):\n", "    outputs = []\n"]
    for number in range(width):
        formula = draw.choice(OPERATIONS).format(draw.randrange(16), draw.randrange(16))
        lines.append(f"    feature_{number} = {formula}  # weight {draw.random()}\n")
        lines.append(f"    outputs.append(feature_{number})\n")
    return [*lines, "    return torch.stack(outputs, 1)\n"]


torch.manual_seed(6)
draw = random.Random(6)
compiler = Compiler()
model = nn.Linear(96, 16)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
best = float("inf")
for _step in range(500):
    features = compiler.compile(write(draw, 96))
    inputs = torch.randn(16, 64)
    loss = nn.functional.mse_loss(model(features(inputs)), inputs.T)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    best = min(best, loss.item())
print(f"{best:.6f}")
