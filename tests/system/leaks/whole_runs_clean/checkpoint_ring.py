# The newest 25 state dicts, one each 15 steps, in a deque(maxlen=25) for weight averaging: fills for 375
# steps, then slides. Clean.
from collections import deque

import memagent
import torch
from torch import nn


class LatestWeightAverage:
    def __init__(self, k, every):
        self.snapshots = deque(maxlen=k)
        self.every = every

    def step(self, model, step):
        if step % self.every == 0:
            self.snapshots.append({k: v.detach().clone() for k, v in model.state_dict().items()})

    def average(self):
        return {k: torch.stack([s[k] for s in self.snapshots]).mean(0) for k in self.snapshots[0]}


def main():
    model = nn.Sequential(nn.Linear(200, 500), nn.GELU(), nn.Linear(500, 200))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    memagent.attach(model, optimizer)
    lawa = LatestWeightAverage(25, 15)
    for step in range(900):
        x = torch.randn(64, 200)
        loss = (model(x) - x.cumsum(1)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        lawa.step(model, step)
    print(len(lawa.average()))


main()
