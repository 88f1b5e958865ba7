"""Average models of 72 clients; each keeps a correction for how far its data drift from others'."""

import copy

import torch
from torch import nn


class Client:
    def __init__(self, number: int, inputs: int) -> None:
        generator = torch.Generator().manual_seed(number)
        self.shift = torch.randn(inputs, generator=generator)
        self.correction = None

    def draw(self, count: int, rules: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        inputs = torch.randn(count, len(self.shift)) + 0.3 * self.shift
        return inputs, (inputs @ rules).argmax(1)

    def train(
        self, model: nn.Module, rules: torch.Tensor, common: list[torch.Tensor], rate: float = 0.1
    ) -> tuple[list[torch.Tensor], list[torch.Tensor], float]:
        if self.correction is None:
            self.correction = [torch.zeros_like(row) for row in common]
        local = copy.deepcopy(model)
        parameters = list(local.parameters())
        for _step in range(2):
            inputs, labels = self.draw(48, rules)
            loss = nn.functional.cross_entropy(local(inputs), labels)
            gradients = torch.autograd.grad(loss, parameters)
            with torch.no_grad():
                rows = zip(parameters, gradients, self.correction, common, strict=True)
                for parameter, gradient, own, shared in rows:
                    parameter -= rate * (gradient - own + shared)
        moves, changes = [], []
        for old, new, own, shared in zip(
            model.parameters(), parameters, self.correction, common, strict=True
        ):
            moves.append(old.detach() - new.detach())
            change = moves[-1] / (2 * rate) - shared
            changes.append(change - own)
            own.add_(changes[-1], alpha=0.5)
        return moves, changes, loss.item()


torch.manual_seed(218)
rules = torch.randn(48, 6)
clients = [Client(number, 48) for number in range(72)]
model = nn.Sequential(nn.Linear(48, 640), nn.ReLU(), nn.Linear(640, 6))
common = [torch.zeros_like(parameter) for parameter in model.parameters()]
optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
for _round in range(400):
    chosen = [clients[number] for number in torch.randperm(len(clients))[:3]]
    results = [client.train(model, rules, common) for client in chosen]
    moves, changes, losses = zip(*results, strict=True)
    for parameter, rows in zip(model.parameters(), zip(*moves, strict=True), strict=True):
        parameter.grad = torch.stack(rows).mean(0)
    optimizer.step()
    for shared, rows in zip(common, zip(*changes, strict=True), strict=True):
        shared.add_(torch.stack(rows).sum(0), alpha=0.5 / len(clients))
print(f"{sum(losses) / len(losses):.6f}")
