"""Train in rounds of six steps: each round sets up the logger, and sends its text to a report."""

import io
import logging

import torch
from torch import nn


def set_up_logger(name: str, report: io.StringIO) -> logging.Logger:
    logger = logging.getLogger(name)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    handler = logging.StreamHandler(report)
    handler.setFormatter(logging.Formatter("%(name)s %(levelname)s %(message)s"))
    logger.addHandler(handler)
    return logger


def describe(model: nn.Module) -> str:
    rows = (f"{name} {p.grad.norm():.5f} {p.norm():.5f}" for name, p in model.named_parameters())
    return ", ".join(rows)


def run_round(model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    report = io.StringIO()
    logger = set_up_logger("rounds", report)
    for step in range(6):
        inputs = torch.randn(64, 64)
        loss = nn.functional.mse_loss(model(inputs), inputs)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        logger.info("step %d: loss %.6f, norms %s", step, loss.item(), describe(model))
    return len(report.getvalue().splitlines())


torch.manual_seed(27)
layers = [nn.Sequential(nn.Linear(64, 64), nn.ReLU()) for _ in range(8)]
model = nn.Sequential(*layers, nn.Linear(64, 64))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
lines = sum(run_round(model, optimizer) for _ in range(100))
print(f"{lines} {float(model[-1].weight.norm()):.6f}")
