"""Draw the spectrum of the gradients after each step, and write the picture now and then."""

import io

import matplotlib
import numpy as np
import torch
from torch import nn

matplotlib.use("Agg")
from matplotlib.figure import Figure  # noqa: E402


class Monitor:
    def __init__(self) -> None:
        self.figure = Figure(figsize=(3, 2))
        self.axes = self.figure.add_subplot()

    def show(self, gradient: np.ndarray) -> None:
        spectrum = np.abs(np.fft.rfft(gradient))
        self.axes.plot(spectrum, linewidth=0.5)

    def picture(self) -> int:
        file = io.BytesIO()
        self.figure.savefig(file, format="png", dpi=40)
        return len(file.getvalue())


torch.manual_seed(37)
monitor = Monitor()
model = nn.Sequential(nn.Linear(100, 160), nn.SiLU(), nn.Linear(160, 100))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
sizes = []
for step in range(400):
    inputs = torch.randn(128, 100)
    loss = nn.functional.mse_loss(model(inputs), inputs)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    monitor.show(model[0].weight.grad.flatten().numpy())
    if step == 50:
        sizes.append(monitor.picture())
print(f"{loss.item():.6f} {len(sizes)}")
