"""Collects the logits of an epoch to compute a calibration error at its end."""

import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F


class Net(nn.Module):
    def __init__(self, inputs=100, width=384, classes=40):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(inputs, width),
            nn.ReLU(),
            nn.Linear(width, width),
            nn.ReLU(),
            nn.Linear(width, classes),
        )

    def forward(self, x):
        return self.net(x)


class EpochOutputs:
    def __init__(self):
        self.logits, self.features, self.labels = [], [], []

    def add(self, logits, features, labels):
        self.logits.append(logits.detach())
        self.features.append(features.detach())
        self.labels.append(labels)

    def calibration(self, bins=10):
        probabilities = torch.cat(self.logits).softmax(1)
        labels = torch.cat(self.labels)
        confidence, guess = probabilities.max(1)
        error = 0.0
        for low in torch.linspace(0, 1, bins + 1)[:-1]:
            chosen = (confidence >= low) & (confidence < low + 1 / bins)
            if chosen.any():
                accuracy = (guess[chosen] == labels[chosen]).float().mean()
                error += (
                    confidence[chosen].mean() - accuracy
                ).abs().item() * chosen.float().mean().item()
        return error

    def clear(self):
        self.logits.clear()
        self.features.clear()
        self.labels.clear()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batches", type=int, default=200)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(2)
    model, outputs = Net(), EpochOutputs()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for epoch in range(args.epochs):
        for _ in range(args.batches):
            x = torch.randn(192, 100, generator=generator)
            y = (x[:, :40] * 2 + x[:, 40:80]).argmax(1)
            logits = model(x)
            loss = F.cross_entropy(logits, y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            outputs.add(logits, x, y)
        print(
            f"epoch {epoch} loss {loss.item():.4f} calibration {outputs.calibration():.4f}",
            flush=True,
        )
        outputs.clear()


if __name__ == "__main__":
    main()
