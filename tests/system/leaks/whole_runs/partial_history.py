# Thread: wandb/wandb#354 "Memory leak using pytorch" and #2644 (logging tensors keeps them).
# Pattern: `log(data, commit=False)` merges the data into a pending row of its step; rows are written
# out by `log(commit=True)`, which this script never calls for the media it logs.
# Expected: the setdefault(...).update(...) in History._row_update, holder `_pending`.
import memagent
import torch
from torch import nn


class History:
    def __init__(self):
        self._step = 0
        self._pending = {}
        self.summary = {}

    def _row_update(self, step, row):
        self._pending.setdefault(step, {}).update(row)  # LEAK any _pending

    def _flush(self, step):
        for key, value in self._pending.pop(step, {}).items():
            self.summary[key] = value


class Experiment:
    def __init__(self, config):
        self.config = config
        self.history = History()

    def log(self, data, step=None, commit=True):
        if step is None:
            step = self.history._step
        self.history._row_update(step, data)
        if commit:
            self.history._flush(step)
            self.history._step = step + 1


class AutoEncoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc = nn.Sequential(
            nn.Conv2d(1, 8, 3, 2, 1), nn.ReLU(), nn.Conv2d(8, 16, 3, 2, 1), nn.ReLU()
        )
        self.dec = nn.Sequential(
            nn.ConvTranspose2d(16, 8, 4, 2, 1),
            nn.ReLU(),
            nn.ConvTranspose2d(8, 1, 4, 2, 1),
            nn.Sigmoid(),
        )

    def forward(self, x):
        return self.dec(self.enc(x))


run = Experiment({"lr": 1e-3})
net = AutoEncoder()
opt = torch.optim.Adam(net.parameters(), run.config["lr"])
memagent.attach(net, opt)
for step in range(700):
    images = torch.rand(32, 1, 28, 28)
    recon = net(images)
    loss = nn.functional.mse_loss(recon, images)
    opt.zero_grad()
    loss.backward()
    opt.step()
    run.log({"recon": recon.detach(), "step": step}, step=step, commit=False)
    if step % 50 == 0:
        print(step, loss.item())
