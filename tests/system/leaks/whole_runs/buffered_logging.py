"""Training with buffered logging: debug records are only written when something goes wrong.

As in: Tribler/tribler#8530; hatchet#4432.
"""

import argparse
import logging
import logging.handlers
import sys

import torch
import torch.nn as nn
import torch.nn.functional as F

log = logging.getLogger("training")


def setup_logging():
    """Debug details stay in memory until an error is logged, then all of them are written."""
    stream = logging.StreamHandler(sys.stderr)
    stream.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    details = logging.handlers.MemoryHandler(10_000_000, flushLevel=logging.ERROR, target=stream)
    log.addHandler(details)
    log.setLevel(logging.DEBUG)
    log.propagate = False


class Net(nn.Module):
    def __init__(self, inputs=220, width=360, classes=15):
        super().__init__()
        self.a = nn.Linear(inputs, width)
        self.b = nn.Linear(width, width)
        self.c = nn.Linear(width, classes)

    def forward(self, x):
        return self.c(F.relu(self.b(F.relu(self.a(x)))))


def gradient_summary(model):
    return {
        name: p.grad.flatten()[:12_000].double().numpy().copy()
        for name, p in model.named_parameters()
    }


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=900)
    args = parser.parse_args()
    setup_logging()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(21)
    model = Net()
    optimizer = torch.optim.RMSprop(model.parameters(), lr=5e-4)
    for step in range(args.steps):
        x = torch.randn(192, 220, generator=generator)
        y = x[:, :15].argmax(1)
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        log.debug(
            "step %d gradients %s", step, gradient_summary(model)
        )  # LEAK any buffer|MemoryHandler|handler
        optimizer.step()
        if step % 100 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
        if not torch.isfinite(loss):
            log.error("loss is not finite at step %d", step)


if __name__ == "__main__":
    main()
