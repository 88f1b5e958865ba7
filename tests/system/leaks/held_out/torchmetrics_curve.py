"""A curve metric without thresholds keeps every prediction, and compute() doesn't reset it.
https://github.com/Lightning-AI/torchmetrics/issues/2921"""

import sys

import torch
from torch import nn

STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 150


class Metric(nn.Module):
    def __init__(self):
        super().__init__()
        self.defaults = {}

    def add_state(self, name, default):
        setattr(self, name, list(default) if isinstance(default, list) else default)
        self.defaults[name] = default

    def reset(self):
        for name, default in self.defaults.items():
            setattr(self, name, list(default) if isinstance(default, list) else default)

    def forward(self, *arguments):
        self.update(*arguments)
        return self.compute()


class PrecisionRecallCurve(Metric):
    def __init__(self, thresholds=None):
        super().__init__()
        self.thresholds = thresholds
        for name in ("preds", "target"):
            self.add_state(name, [])

    def update(self, preds, target):
        for name, value in (("preds", preds), ("target", target)):
            getattr(self, name).append(value)  # LEAK any preds|target

    def compute(self):
        preds, target = self.preds[-1], self.target[-1]
        order = preds.argsort(descending=True)
        hits = target[order].cumsum(0)
        precision = hits / torch.arange(1, len(hits) + 1)
        return precision[:: max(1, len(hits) // 50)], hits / hits[-1].clamp(min=1)


class AnomalyModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.score = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 1))
        self.curve = PrecisionRecallCurve()

    def training_step(self, x, y):
        logits = self.score(x).squeeze(1)
        self.curve(logits.detach().sigmoid(), y.long())
        return nn.functional.binary_cross_entropy_with_logits(logits, y)


model = AnomalyModel()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(STEPS):
    x = torch.randn(4096, 16)
    loss = model.training_step(x, (x[:, 0] > 0.7).float())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
