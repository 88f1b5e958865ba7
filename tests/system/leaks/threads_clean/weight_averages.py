"""Averages of weights begin late: an EMA from the start, SWA from step 40, a window of the last
eight: https://github.com/epfml/schedules-and-scaling/pull/2."""

# BEGIN 36
# CONFIRM 80
import copy

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn


class WindowAverage:
    def __init__(self, size):
        self.size, self.states = size, []

    def add(self, model):
        self.states.append(copy.deepcopy(model.state_dict()))
        self.states = self.states[-self.size :]

    def average(self):
        return {
            k: torch.stack([s[k].float() for s in self.states]).mean(dim=0) for k in self.states[0]
        }


def main():
    model = nn.Sequential(nn.Linear(256, 768), nn.GELU(), nn.Linear(768, 256))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.99))
    swa, window = None, WindowAverage(8)
    for step in range(180):
        x = torch.randn(160, 256)
        loss = (model(x) - x.flip(1)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        ema.update_parameters(model)
        if step >= 40:
            if swa is None:
                swa = AveragedModel(model)
            swa.update_parameters(model)
        if step % 6 == 0:
            window.add(model)
    model.load_state_dict(window.average())


main()
