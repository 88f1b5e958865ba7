"""Evolve formulas for features: a population of compiled functions, of which the oldest goes."""

import linecache
import random
from collections import OrderedDict

import torch
from torch import nn

OPERATIONS = ("x[{0}] * x[{1}]", "torch.sin(x[{0}] - x[{1}])", "x[{0}].clamp(min=-1) + x[{1}]")


class Population:
    def __init__(self, size: int) -> None:
        self.size = size
        self.functions = OrderedDict()
        self.born = 0

    def add(self, lines: list[str]) -> None:
        self.born += 1
        name = f"<member {self.born}>"
        text = "".join(lines)
        linecache.cache[name] = (len(text), None, lines, name)
        namespace = {"torch": torch}
        exec(compile(text, name, "exec"), namespace)
        self.functions[name] = namespace["features"]
        if len(self.functions) > self.size:
            oldest, _ = self.functions.popitem(last=False)
            del linecache.cache[oldest]

    def draw(self, draw: random.Random):
        return self.functions[draw.choice(list(self.functions))]


def write(draw: random.Random, width: int) -> list[str]:
    lines = ["def features(x):\n", "    outputs = []\n"]
    for number in range(width):
        formula = draw.choice(OPERATIONS).format(draw.randrange(16), draw.randrange(16))
        lines.append(f"    feature_{number} = {formula}  # weight {draw.random()}\n")
        lines.append(f"    outputs.append(feature_{number})\n")
    return [*lines, "    return torch.stack(outputs, 1)\n"]


torch.manual_seed(7)
draw = random.Random(7)
population = Population(120)
model = nn.Linear(96, 16)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _step in range(500):
    population.add(write(draw, 96))
    inputs = torch.randn(16, 64)
    loss = nn.functional.mse_loss(model(population.draw(draw)(inputs)), inputs.T)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"{loss.item():.6f}")
