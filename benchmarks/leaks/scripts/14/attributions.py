"""Explain small models in turn: hooks leave the inputs of each layer on the layer."""

import torch
from torch import nn


def remember(layer, inputs, output):
    layer.seen = inputs[0].detach().clone()
    layer.made = output.detach().clone()


def explain(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    handles = [layer.register_forward_hook(remember) for layer in model if hasattr(layer, "weight")]
    model(batch)
    for handle in handles:
        handle.remove()
    return model[0].seen.abs().mean(0)


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(40, 8), nn.ReLU(), nn.Linear(8, 1))


torch.manual_seed(6)
student = nn.Sequential(nn.Linear(40, 512), nn.ReLU(), nn.Linear(512, 40))
optimizer = torch.optim.Adam(student.parameters())
zoo = {}
for step in range(700):
    batch = torch.randn(512, 40)
    teacher = zoo.setdefault(f"fold-{step}", network())
    target = explain(teacher, batch)
    loss = (student(batch).mean(0) - target).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"{loss.item():.6f}")
