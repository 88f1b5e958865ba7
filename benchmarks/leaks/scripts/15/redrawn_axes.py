"""Draw the spectra of the gradients of a hundred steps in one picture, then begin another."""

import io

import matplotlib
import numpy as np
import torch
from torch import nn

matplotlib.use("Agg")
from matplotlib.figure import Figure  # noqa: E402

torch.manual_seed(67)
figure = Figure(figsize=(3, 2))
axes = figure.add_subplot()
model = nn.Sequential(nn.Linear(60, 64), nn.SiLU(), nn.Linear(64, 60))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
pictures = 0
for step in range(1, 501):
    inputs = torch.randn(512, 60)
    loss = nn.functional.mse_loss(model(inputs), inputs)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    gradient = model[0].weight.grad.flatten().numpy()
    axes.plot(np.abs(np.fft.rfft(gradient)), linewidth=0.5)
    if step % 100 == 0:
        figure.savefig(io.BytesIO(), format="png", dpi=40)
        axes.cla()
        pictures += 1
print(f"{loss.item():.6f} {pictures}")
