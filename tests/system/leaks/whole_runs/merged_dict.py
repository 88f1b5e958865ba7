# Thread: facebookresearch/mmf#846 "CPU evaluation and report memory leak" (reports that are merged).
# Pattern: functional style: a step returns a new report merged from the old one and its own entries; keys
# contain the step.
# Expected: the `{**report, ...}` line or the line that assigns its result; holder `report`.
import memagent
import torch
from torch import nn


def training_step(model, optimizer, report, step):
    features, targets = torch.randn(64, 128), torch.randn(64, 32)
    outputs = model(features)
    loss = nn.functional.huber_loss(outputs, targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    entry = {
        f"train/{step}/scores": outputs.detach(),
        f"train/{step}/inputs": features,
        "loss": loss.detach(),
    }
    return {**report, **entry}  # LEAK any report


def fit(model, optimizer, steps):
    report = {}
    for step in range(steps):
        report = training_step(model, optimizer, report, step)  # LEAK any report
        if step % 100 == 0:
            print(step, float(report["loss"]))
    return report


if __name__ == "__main__":
    net = nn.Sequential(nn.Linear(128, 256), nn.SELU(), nn.Linear(256, 32))
    adam = torch.optim.Adam(net.parameters())
    memagent.attach(net, adam)
    fit(net, adam, 800)
