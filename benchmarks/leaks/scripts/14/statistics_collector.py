"""Collect statistics: the loss of a validation batch is added as it is, with its graph."""

import torch
from torch import nn


class StatisticsCollector(dict):
    def add_statistics(self, name: str, form: str) -> None:
        self[name] = []
        self.forms = {**getattr(self, "forms", {}), name: form}

    def collect(self, **values) -> None:
        for name, value in values.items():
            self[name].append(value)

    def text(self) -> str:
        return " ".join(form.format(float(torch.as_tensor(self[name][-1]).detach())) for name, form in self.forms.items())


class Problem:
    def __init__(self) -> None:
        self.collector = StatisticsCollector()
        self.collector.add_statistics("loss", "{:.5f}")
        self.collector.add_statistics("accuracy", "{:.3f}")

    def evaluate(self, logits, labels):
        loss = nn.functional.cross_entropy(logits, labels)
        accuracy = (logits.argmax(-1) == labels).float().mean().item()
        self.collector.collect(loss=loss, accuracy=accuracy)
        return loss


torch.manual_seed(4)
problem = Problem()
model = nn.Sequential(nn.Linear(256, 256), nn.Tanh(), nn.Linear(256, 4))
optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-4)
for _ in range(800):
    inputs = torch.randn(128, 256)
    loss = problem.evaluate(model(inputs), torch.randint(4, (128,)))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    problem.evaluate(model(torch.randn(96, 256)), torch.randint(4, (96,)))
print(problem.collector.text())
