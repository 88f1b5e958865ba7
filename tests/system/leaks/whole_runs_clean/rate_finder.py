"""A learning-rate range test, then training from the restored weights.

Range test keeps weights in the first quarter, then drops them.
"""

import copy
import math

import torch
from torch import nn
import itertools

torch.set_num_threads(1)
torch.manual_seed(1)


class RangeTest:
    def __init__(self, model, criterion, low=1e-6, high=1.0, steps=240):
        self.model, self.criterion = model, criterion
        self.low, self.high, self.steps = low, high, steps

    def run(self, batches):
        start = copy.deepcopy(self.model.state_dict())
        optimizer = torch.optim.SGD(self.model.parameters(), lr=self.low)
        trace = []
        for i, (x, y) in zip(range(self.steps), batches):
            rate = self.low * (self.high / self.low) ** (i / (self.steps - 1))
            optimizer.param_groups[0]["lr"] = rate
            out = self.model(x)
            loss = self.criterion(out, y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            weights = torch.cat([p.detach().flatten() for p in self.model.parameters()])
            trace.append((rate, loss.item(), weights))
            if loss.item() > 10 * trace[0][1] or math.isnan(loss.item()):
                break
        self.model.load_state_dict(start)
        drops = [
            (b[1] - a[1]) / (1 + (b[2] - a[2]).norm().item()) for a, b in itertools.pairwise(trace)
        ]
        return trace[drops.index(min(drops))][0]


def batches(n=4500):
    while True:
        x = torch.randn(n, 100)
        yield x, (x[:, 0] * x[:, 1] + x[:, 2]).unsqueeze(1)


model = nn.Sequential(
    nn.Linear(100, 300), nn.ReLU(), nn.Linear(300, 300), nn.ReLU(), nn.Linear(300, 1)
)
stream = batches()
rate = RangeTest(model, nn.MSELoss()).run(stream)
print(f"rate {rate:.2e}")
optimizer = torch.optim.SGD(model.parameters(), lr=min(rate, 0.05), momentum=0.9)
losses = []
for step, (x, y) in zip(range(800), stream):
    loss = nn.functional.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
    if step % 100 == 99:
        print(step + 1, sum(losses[-100:]) / 100)
