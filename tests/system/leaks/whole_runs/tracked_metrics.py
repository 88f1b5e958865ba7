"""As in: mosaicml/composer#3153; torchmetrics#1949."""

import torch
from torch import nn
from torchmetrics import MetricCollection
from torchmetrics.classification import BinaryAUROC, BinaryAveragePrecision
from torchmetrics.wrappers import MetricTracker

torch.set_num_threads(1)
torch.manual_seed(2)


def clicks(n):
    x = torch.randn(n, 40)
    p = torch.sigmoid(x[:, 0] - x[:, 1] * x[:, 2])
    return x, torch.bernoulli(p)


class WideAndDeep(nn.Module):
    def __init__(self):
        super().__init__()
        self.wide = nn.Linear(40, 1)
        self.deep = nn.Sequential(
            nn.Linear(40, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 1)
        )

    def forward(self, x):
        return (self.wide(x) + self.deep(x)).squeeze(1)


model = WideAndDeep()
optimizer = torch.optim.Adam(model.parameters(), lr=5e-4)
bce = nn.BCEWithLogitsLoss()
tracker = MetricTracker(
    MetricCollection([BinaryAUROC(), BinaryAveragePrecision()]), maximize=[True, True]
)  # LEAK any tracker|_modules|preds|target

for step in range(1, 901):
    x, y = clicks(3000)
    loss = bce(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

    if step % 15 == 0:
        tracker.increment()  # LEAK any tracker|_modules|preds|target
        model.eval()
        with torch.no_grad():
            for _ in range(3):
                vx, vy = clicks(3_000)
                tracker.update(torch.sigmoid(model(vx)), vy.long())
        model.train()
        scores = tracker.compute()
        if step % 150 == 0:
            print(step, {k: round(v.item(), 4) for k, v in scores.items()})
