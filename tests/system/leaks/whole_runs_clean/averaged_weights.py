"""EMA and SWA copies made at 19% and 40%."""

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

torch.set_num_threads(1)
torch.manual_seed(4)


def build():
    return nn.Sequential(
        nn.Linear(64, 1400), nn.GELU(), nn.Linear(1400, 1400), nn.GELU(), nn.Linear(1400, 12)
    )


class Averages:
    """An exponential average after the warm-up and a plain one in the second phase."""

    def __init__(self, model, ema_from=150, swa_from=320):
        self.model, self.ema_from, self.swa_from = model, ema_from, swa_from
        self.ema = self.swa = None

    def update(self, step):
        if step == self.ema_from:
            self.ema = AveragedModel(self.model, multi_avg_fn=get_ema_multi_avg_fn(0.999))
        if step == self.swa_from:
            self.swa = AveragedModel(self.model)
        if self.ema is not None:
            self.ema.update_parameters(self.model)
        if self.swa is not None and step % 10 == 0:
            self.swa.update_parameters(self.model)


model = build()
averages = Averages(model)
optimizer = torch.optim.Adam(model.parameters(), lr=3e-4)
for step in range(1, 801):
    x = torch.randn(96, 64)
    y = (x[:, :12] * x[:, 12:24]).argmax(1)
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    averages.update(step)
    if step % 100 == 0:
        with torch.no_grad():
            scores = [
                nn.functional.cross_entropy(m(x), y).item()
                for m in (model, averages.ema, averages.swa)
                if m is not None
            ]
        print(step, [round(s, 4) for s in scores])
