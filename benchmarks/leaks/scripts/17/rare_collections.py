"""Evaluate after each step with an engine that its handlers refer to; garbage waits for long."""

import gc

import torch
from torch import nn


class Engine:
    def __init__(self, process) -> None:
        self.process = process
        self.handlers = []
        self.output = None

    def on_completed(self, handler) -> None:
        self.handlers.append((handler, (self,)))

    def run(self, batch: torch.Tensor) -> float:
        self.output = self.process(batch)
        return sum(handler(*arguments) for handler, arguments in self.handlers)


def mean_error(engine: Engine) -> float:
    return float(engine.output.square().mean())


gc.set_threshold(1_000, 5, 5)
torch.manual_seed(73)
model = nn.Sequential(nn.Linear(96, 128), nn.ReLU(), nn.Linear(128, 96))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
error = 0.0
for _step in range(700):
    batch = torch.randn(256, 96)
    loss = nn.functional.mse_loss(model(batch), batch)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        evaluator = Engine(lambda inputs: model(inputs) - inputs)
        evaluator.on_completed(mean_error)
        error += evaluator.run(batch)
print(f"{error:.6f}")
