"""LSTM forecaster that skips batches whose loss is far above the running mean.

As in: pytorch/pytorch#10348, #27600.
"""

import argparse
import math

import torch
import torch.nn as nn


class LossSpikeError(RuntimeError):
    pass


class Forecaster(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.lstm = nn.LSTM(8, width, num_layers=1, batch_first=True)
        self.head = nn.Linear(width, 8)

    def forward(self, x):
        hidden, _ = self.lstm(x)
        return self.head(hidden)


class Loop:
    def __init__(self, model, tolerance=1.25, warmup=200):
        self.model = model
        self.optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
        self.tolerance, self.warmup = tolerance, warmup
        self.mean = None
        self.skipped = {}

    def check(self, loss, step):
        value = loss.item()
        if not math.isfinite(value):
            raise LossSpikeError("loss is not finite")
        if step > self.warmup and self.mean is not None and value > self.tolerance * self.mean:
            raise LossSpikeError(f"{value:.3f} against a mean of {self.mean:.3f}")
        self.mean = value if self.mean is None else 0.95 * self.mean + 0.05 * value

    def step(self, step, series):
        inputs, targets = series[:, :-1], series[:, 1:]
        prediction = self.model(inputs)
        loss = (prediction - targets).pow(2).mean()
        self.check(loss, step)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def run(self, stream):
        for step, series in enumerate(stream):
            try:
                self.step(step, series)
            except LossSpikeError as error:
                self.optimizer.zero_grad()
                self.optimizer.step()
                self.skipped[step] = error  # LEAK any skipped
            if step % 100 == 0:
                print(f"step {step} mean {self.mean:.4f} skipped {len(self.skipped)}", flush=True)


def stream(steps, size=24, length=40):
    generator = torch.Generator().manual_seed(9)
    for step in range(steps):
        phase = torch.rand(size, 1, 8, generator=generator) * 6.28
        time = torch.arange(length)[None, :, None] * 0.2
        noise = 0.6 if torch.rand(1, generator=generator).item() < 0.45 else 0.1
        yield torch.sin(time + phase) + noise * torch.randn(size, length, 8, generator=generator)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=1000)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    Loop(Forecaster()).run(stream(args.steps))


if __name__ == "__main__":
    main()
