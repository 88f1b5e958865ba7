"""Cross-validated forecasting: many small models, one report at the end.

sktime/pytorch-forecasting#648 describes how objects of earlier fits stay in memory.
"""
import argparse
import statistics

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Forecaster(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(96, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 8))

    def forward(self, x):
        return self.net(x)


class Fold:
    def __init__(self, number, x, y, width):
        parts = torch.arange(len(x)) % 8 == number % 8
        self.number, self.held_out = number, (x[parts], y[parts])
        self.loader = DataLoader(TensorDataset(x[~parts], y[~parts]), batch_size=64, shuffle=True)
        self.model = Forecaster(width)
        self.opt = torch.optim.Adam(self.model.parameters(), lr=1e-3)

    def fit(self, steps):
        done = 0
        while done < steps:
            for x, y in self.loader:
                loss = nn.functional.huber_loss(self.model(x), y)
                self.opt.zero_grad()
                loss.backward()
                self.opt.step()
                done += 1
                if done == steps:
                    break

    @torch.no_grad()
    def score(self):
        x, y = self.held_out
        return nn.functional.l1_loss(self.model(x), y).item()


def series(n):
    t = torch.arange(n + 104).float()
    wave = torch.sin(t / 7) + 0.5 * torch.sin(t / 31) + 0.2 * torch.randn(len(t))
    windows = wave.unfold(0, 104, 1)[:n]
    return windows[:, :96].clone(), windows[:, 96:].clone()


parser = argparse.ArgumentParser()
parser.add_argument("--repeats", type=int, default=6)
parser.add_argument("--steps", type=int, default=40)
args = parser.parse_args()
torch.manual_seed(17)
torch.set_num_threads(1)
x, y = series(2400)
report = {}
for repeat in range(args.repeats):
    for number in range(8):
        fold = Fold(number, x, y, width=768)
        fold.fit(args.steps)
        report[repeat, number] = fold.score
    print(f"repeat {repeat} done, {len(report)} folds")
for repeat in range(args.repeats):
    scores = [report[repeat, number]() for number in range(8)]
    print(f"repeat {repeat}: mae {statistics.mean(scores):.4f}")
