"""Keep a confusion of predictions by joining arrays, and never begin anew after an epoch."""

import numpy as np
import torch
from torch import nn


class Metric:
    def reset(self) -> None:
        self.scores = np.empty((0, 50), np.float32)
        self.labels = np.empty(0, np.int64)

    def update(self, scores: np.ndarray, labels: np.ndarray) -> None:
        self.scores = np.concatenate((self.scores, scores))
        self.labels = np.concatenate((self.labels, labels))

    def accuracy(self, last: int = 500) -> float:
        return float((self.scores[-last:].argmax(1) == self.labels[-last:]).mean())


torch.manual_seed(8)
metric = Metric()
metric.reset()
model = nn.Sequential(nn.Linear(100, 200), nn.ReLU(), nn.Linear(200, 50))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
for _epoch in range(12):
    for _ in range(50):
        inputs, labels = torch.randn(256, 100), torch.randint(50, (256,))
        scores = model(inputs)
        loss = nn.functional.cross_entropy(scores, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        metric.update(scores.detach().numpy(), labels.numpy())
    print(f"{metric.accuracy():.4f}")
