"""Learn to learn sines: copies of a model adapt to tasks, and prefer flat places by a penalty."""

import copy
import math

import torch
from torch import nn


class SineTask:
    def __init__(self) -> None:
        self.amplitude = 0.5 + 4 * torch.rand(1)
        self.phase = math.pi * torch.rand(1)

    def draw(self, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        inputs = 10 * torch.rand(count, 1) - 5
        return inputs, self.amplitude * torch.sin(inputs + self.phase)


def adapt(
    model: nn.Module, task: SineTask, steps: int, rate: float = 0.01, flatness: float = 1e-3
) -> nn.Module:
    learner = copy.deepcopy(model)
    parameters = list(learner.parameters())
    for _step in range(steps):
        for parameter in parameters:
            parameter.grad = None
        inputs, targets = task.draw(32)
        loss = nn.functional.mse_loss(learner(inputs), targets)
        loss.backward(create_graph=True)
        steepness = sum(parameter.grad.square().sum() for parameter in parameters)
        corrections = torch.autograd.grad(
            flatness * steepness, parameters, allow_unused=True, materialize_grads=True
        )
        with torch.no_grad():
            for parameter, correction in zip(parameters, corrections, strict=True):
                parameter -= rate * (parameter.grad + correction).clamp(-10, 10)
    return learner


def follow(model: nn.Module, learners: list[nn.Module]) -> None:
    for name, parameter in model.named_parameters():
        adapted = torch.stack([learner.get_parameter(name).detach() for learner in learners])
        parameter.grad = parameter.detach() - adapted.mean(0)


def evaluate(model: nn.Module, tasks: list[SineTask]) -> float:
    losses = []
    for task in tasks:
        inputs, targets = task.draw(64)
        with torch.no_grad():
            losses.append(nn.functional.mse_loss(model(inputs), targets))
    return torch.stack(losses).mean().item()


torch.manual_seed(205)
model = nn.Sequential(nn.Linear(1, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
for _step in range(400):
    learners = [adapt(model, SineTask(), steps=2) for _ in range(2)]
    follow(model, learners)
    optimizer.step()
print(f"{evaluate(model, [SineTask() for _ in range(8)]):.4f}")
