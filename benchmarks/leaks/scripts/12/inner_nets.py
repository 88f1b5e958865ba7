"""Meta-learn an initialization: each task solves an inner problem from the same parameters."""

import torch
from torch import nn


class InnerNet:
    """A copy of the meta parameters that a task adapts, and that pulls them back to itself."""

    def __init__(self, meta: nn.Linear, pull: float) -> None:
        self.weight = meta.weight.detach().clone().requires_grad_()
        self.pull = pull
        meta.weight.register_hook(self._toward)

    def _toward(self, gradient):
        return gradient + self.pull * self.weight.detach().mean()

    def solve(self, x, y, steps: int) -> torch.Tensor:
        for _ in range(steps):
            loss = ((x @ self.weight.T - y) ** 2).mean()
            (gradient,) = torch.autograd.grad(loss, self.weight)
            with torch.no_grad():
                self.weight -= 0.1 * gradient
        return loss.detach()


def main() -> None:
    torch.manual_seed(0)
    meta = nn.Linear(128, 128, bias=False)
    optimizer = torch.optim.SGD(meta.parameters(), lr=0.01)
    for task in range(500):
        x = torch.randn(64, 128)
        y = x.roll(task % 5, 1)
        inner = InnerNet(meta, 1e-9)
        inner.solve(x, y, 3)
        loss = ((meta(x) - x @ inner.weight.T.detach()) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(float(loss.detach()))


main()
