"""An exponential average begins at step 40, a stochastic weight average at step 200."""

import sys

import torch
from torch import nn
from torch.optim.swa_utils import SWALR, AveragedModel, get_ema_multi_avg_fn

STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 300
# CONFIRM 80

model = nn.Sequential(
    nn.Linear(96, 384), nn.GELU(), nn.Linear(384, 384), nn.GELU(), nn.Linear(384, 8)
)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
ema = swa = scheduler = None
for step in range(STEPS):
    x, y = torch.randn(48, 96), torch.randint(0, 8, (48,))
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step == 40:
        ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.99))
    if step == 200:
        swa = AveragedModel(model)
        scheduler = SWALR(optimizer, swa_lr=5e-4, anneal_epochs=20)
    if ema is not None:
        ema.update_parameters(model)
    if swa is not None and step > 200 and step % 10 == 0:
        swa.update_parameters(model)
        scheduler.step()
