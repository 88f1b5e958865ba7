"""Binary classifier with an exact AUROC per epoch (torchmetrics keeps all scores until reset)."""

import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F
from torchmetrics.classification import BinaryAUROC


class Net(nn.Module):
    def __init__(self, inputs=40, width=96):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(inputs, width),
            nn.ReLU(),
            nn.Linear(width, width),
            nn.ReLU(),
            nn.Linear(width, 1),
        )

    def forward(self, x):
        return self.net(x).squeeze(1)


class Epoch:
    def __init__(self, model, optimizer, metric, generator):
        self.model, self.optimizer, self.metric, self.generator = (
            model,
            optimizer,
            metric,
            generator,
        )

    def batch(self, size):
        x = torch.randn(size, 40, generator=self.generator)
        return x, (x[:, 0] + x[:, 1] * x[:, 2] > 0.3).float()

    def run(self, batches, size):
        total = 0.0
        for _ in range(batches):
            x, y = self.batch(size)
            logits = self.model(x)
            loss = F.binary_cross_entropy_with_logits(logits, y)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.metric.update(logits.detach().sigmoid(), y.long())
            total += loss.item()
        auroc = self.metric.compute().item()
        self.metric.reset()
        return total / batches, auroc


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--batches", type=int, default=150)
    parser.add_argument("--batch-size", type=int, default=4096)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = Net()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    epoch = Epoch(model, optimizer, BinaryAUROC(), torch.Generator().manual_seed(5))
    for index in range(args.epochs):
        loss, auroc = epoch.run(args.batches, args.batch_size)
        print(f"epoch {index} loss {loss:.4f} auroc {auroc:.4f}", flush=True)


if __name__ == "__main__":
    main()
