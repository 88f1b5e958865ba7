"""Sentiment classifier with early stopping on a held-out set.

As in: leftthomas/SRGAN#43; pytorch/pytorch#4932; skorch#218.
"""

import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F


class TextCNN(nn.Module):
    def __init__(self, vocab=4000, dim=96, channels=96, classes=2):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.convs = nn.ModuleList(nn.Conv1d(dim, channels, k, padding=k // 2) for k in (3, 5))
        self.head = nn.Linear(2 * channels, classes)

    def forward(self, tokens):
        x = self.embed(tokens).transpose(1, 2)
        pooled = [F.relu(conv(x)).amax(dim=2) for conv in self.convs]
        return self.head(torch.cat(pooled, dim=1))


class EarlyStopping:
    """Stops after `patience` evaluations without an improvement."""

    def __init__(self, patience):
        self.patience = patience
        self.best = None
        self.wait = 0
        self.curve = []

    def update(self, value):
        self.curve.append(value)  # LEAK any curve
        if self.best is None or float(value) < self.best:
            self.best, self.wait = float(value), 0
        else:
            self.wait += 1
        return self.wait > self.patience


def make_batch(size, length=40, vocab=4000):
    tokens = torch.randint(0, vocab, (size, length))
    labels = (tokens[:, :5].sum(1) % 2).long()
    return tokens, labels


def evaluate(model, batches):  # LEAK any curve
    model.eval()  # LEAK any curve
    total = 0.0
    for tokens, labels in batches:
        logits = model(tokens)
        total = total + F.cross_entropy(logits, labels)  # LEAK any curve
    model.train()
    return total / len(batches)  # LEAK any curve


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=900)
    parser.add_argument("--eval-every", type=int, default=10)
    args = parser.parse_args()

    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = TextCNN()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    held_out = [make_batch(24) for _ in range(2)]
    stopper = EarlyStopping(patience=10_000)

    for step in range(1, args.steps + 1):
        tokens, labels = make_batch(128)
        loss = F.cross_entropy(model(tokens), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % args.eval_every == 0:
            val_loss = evaluate(model, held_out)
            if stopper.update(val_loss):  # LEAK any curve
                break
            if step % 100 == 0:
                print(f"{step:5d}  train {loss.item():.4f}  val {val_loss.item():.4f}")


if __name__ == "__main__":
    main()
