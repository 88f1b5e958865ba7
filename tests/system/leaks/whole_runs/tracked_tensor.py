"""Tensors that know where they come from (for provenance reports of data pipelines).

As in: torch subclass provenance threads.
"""

import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F


class Tracked(torch.Tensor):
    """A tensor with the operation and the operands that produced it."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        result = super().__torch_function__(func, types, args, kwargs or {})
        if isinstance(result, Tracked):
            result.origin = (
                getattr(func, "__name__", str(func)),
                [a for a in args if isinstance(a, torch.Tensor)],
            )  # LEAK any origin|.average|baseline
        return result

    def describe(self):
        origin = getattr(self, "origin", None)
        return origin[0] if origin else "source"


class Regressor(nn.Module):
    def __init__(self, inputs=256, width=448):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(inputs, width),
            nn.ReLU(),
            nn.Linear(width, width),
            nn.ReLU(),
            nn.Linear(width, inputs),
        )

    def forward(self, x):
        return self.net(x)


class Baseline:
    """Exponential average of the inputs, which the model has to beat."""

    def __init__(self, size, inputs):
        self.average = torch.zeros(size, inputs).as_subclass(Tracked)

    def update(self, x):
        self.average = self.average * 0.95 + x * 0.05  # LEAK any origin|.average|baseline
        return self.average


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=900)
    parser.add_argument("--batch", type=int, default=128)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(12)
    model, baseline = Regressor(), Baseline(args.batch, 256)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    level = torch.zeros(1, 256)
    for step in range(args.steps):
        level = 0.99 * level + 0.1 * torch.randn(1, 256, generator=generator)
        x = level + 0.1 * torch.randn(args.batch, 256, generator=generator)
        guess = baseline.update(x)
        with torch._C.DisableTorchFunctionSubclass():
            plain = guess.as_subclass(torch.Tensor)
        loss = F.mse_loss(model(x - plain), x - plain)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 100 == 0:
            print(
                f"step {step} loss {loss.item():.4f} baseline from {guess.describe()}", flush=True
            )


if __name__ == "__main__":
    main()
