"""Evaluation without `torch.no_grad()`: the outputs that are collected keep their activations."""

from __future__ import annotations

import torch


def main() -> None:
    layers = [torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.ReLU()) for _ in range(6)]
    model = torch.nn.Sequential(*layers, torch.nn.Linear(32, 8))
    optimizer = torch.optim.AdamW(model.parameters())
    predictions: list[torch.Tensor] = []
    for _ in range(40):
        optimizer.zero_grad()
        model(torch.randn(64, 32)).pow(2).mean().backward()
        optimizer.step()
        predictions.append(model(torch.randn(64, 32)))  # LEAK list predictions: list of


main()
