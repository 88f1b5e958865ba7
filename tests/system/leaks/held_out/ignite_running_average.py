"""A running average of what the engine's step returns, which still has its graph.
https://github.com/pytorch/ignite/pull/943"""

import sys
from collections import defaultdict

import torch
from torch import nn

STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 150
ITERATION_COMPLETED = "iteration completed"


class State:
    iteration = 0
    output = None

    def __init__(self):
        self.metrics = {}


class Engine:
    def __init__(self, process):
        self.process = process
        self.handlers = defaultdict(list)
        self.state = State()

    def on(self, event, handler, *arguments):
        self.handlers[event].append((handler, arguments))

    def run(self, data):
        for batch in data:
            self.state.iteration += 1
            self.state.output = self.process(self, batch)
            for handler, arguments in self.handlers[ITERATION_COMPLETED]:
                handler(self, *arguments)


class RunningAverage:
    def __init__(self, alpha=0.98, output_transform=lambda output: output):
        self.alpha = alpha
        self.output_transform = output_transform
        self.value = None

    def attach(self, engine, name):
        engine.on(ITERATION_COMPLETED, self.update, name)

    def update(self, engine, name):
        output = self.output_transform(engine.state.output)
        if self.value is None:
            self.value = output
        else:
            self.value = self.value * self.alpha + (1.0 - self.alpha) * output  # LEAK any value
        engine.state.metrics[name] = self.value


model = nn.Sequential(nn.Conv1d(4, 16, 5), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 60, 200))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)


def update(engine, batch):
    x, y = batch
    optimizer.zero_grad()
    predictions = model(x)
    loss = nn.functional.cross_entropy(predictions, y)
    loss.backward()
    optimizer.step()
    return {"loss": loss, "confidence": predictions.softmax(1).max(1).values.mean()}


def batches():
    for _ in range(STEPS):
        yield torch.randn(64, 4, 64), torch.randint(0, 200, (64,))


trainer = Engine(update)
RunningAverage(output_transform=lambda output: output["confidence"]).attach(trainer, "confidence")
trainer.run(batches())
print(trainer.state.metrics["confidence"].item())
