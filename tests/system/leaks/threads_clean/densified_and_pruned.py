"""Parameters grow and are pruned; the state of the old ones is removed.

As in https://github.com/nerfstudio-project/gsplat/pull/931.
"""

import torch
from torch import nn


class Cloud:
    def __init__(self, count):
        self.points = nn.Parameter(torch.randn(count, 12))
        self.optimizer = torch.optim.Adam([self.points], lr=0.01)

    def replace(self, rows):
        old, state = self.points, self.optimizer.state.pop(self.points, {})
        self.points = nn.Parameter(old.detach()[rows].clone())
        for key in ("exp_avg", "exp_avg_sq"):
            if key in state:
                state[key] = state[key][rows]
        self.optimizer.param_groups[0]["params"] = [self.points]
        self.optimizer.state[self.points] = state


cloud = Cloud(200)
for step in range(130):
    loss = (cloud.points.norm(dim=1) - 1).square().mean()
    cloud.optimizer.zero_grad()
    loss.backward()
    cloud.optimizer.step()
    if step % 6 == 5:
        count = len(cloud.points)
        rows = torch.arange(count)
        rows = torch.cat([rows, rows[:40]]) if count < 400 else rows[:220]
        cloud.replace(rows)
