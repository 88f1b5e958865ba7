"""Click-through model with streaming metrics from torchmetrics.

As in: Lightning-AI/torchmetrics#3294, #1949.
"""

import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F
from torchmetrics import MeanMetric, MetricCollection
from torchmetrics.classification import BinaryAccuracy, BinaryAveragePrecision


class ClickModel(nn.Module):
    def __init__(self, fields=12, cardinality=800, width=24):
        super().__init__()
        self.embeddings = nn.ModuleList(nn.Embedding(cardinality, width) for _ in range(fields))
        self.mlp = nn.Sequential(nn.Linear(fields * width, 96), nn.ReLU(), nn.Linear(96, 1))

    def forward(self, ids):
        parts = [table(ids[:, i]) for i, table in enumerate(self.embeddings)]
        return self.mlp(torch.cat(parts, 1)).squeeze(1)


class Stream:
    def __init__(self, fields=12, cardinality=800, seed=0):
        self.generator = torch.Generator().manual_seed(seed)
        self.weights = torch.randn(fields, cardinality, generator=self.generator)
        self.fields, self.cardinality = fields, cardinality

    def batch(self, size):
        ids = torch.randint(0, self.cardinality, (size, self.fields), generator=self.generator)
        logits = self.weights[torch.arange(self.fields), ids].sum(1) * 0.5 - 1
        return ids, torch.bernoulli(torch.sigmoid(logits), generator=self.generator)


class Experiment:
    def __init__(self):
        self.model = ClickModel()
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=2e-3)
        self.metrics = MetricCollection({"acc": BinaryAccuracy(), "ap": BinaryAveragePrecision()})
        self.mean_loss = MeanMetric()

    def step(self, ids, clicked):
        logits = self.model(ids)
        loss = F.binary_cross_entropy_with_logits(logits, clicked)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        probabilities = torch.sigmoid(logits.detach())
        self.metrics.update(
            probabilities, clicked.long()
        )  # LEAK any .preds|.target|preds|metrics|ap|AveragePrecision
        self.mean_loss.update(loss.detach())

    def report(self, step):
        accuracy = self.metrics["acc"].compute().item()
        print(f"step {step} loss {self.mean_loss.compute():.4f} acc {accuracy:.4f}", flush=True)
        self.mean_loss.reset()
        self.metrics["acc"].reset()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=900)
    parser.add_argument("--batch", type=int, default=6144)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    experiment, stream = Experiment(), Stream()
    for step in range(1, args.steps + 1):
        experiment.step(*stream.batch(args.batch))
        if step % 100 == 0:
            experiment.report(step)
    print("average precision", experiment.metrics["ap"].compute().item())


if __name__ == "__main__":
    main()
