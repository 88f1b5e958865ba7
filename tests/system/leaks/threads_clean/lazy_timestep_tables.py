"""Embedding tables of a diffusion model are made for a time step when it is first drawn:
https://github.com/huggingface/transformers/pull/40007 has the same for sizes."""

# BEGIN 40
# CONFIRM 80
import torch
from torch import nn


class TimestepTables(nn.Module):
    def __init__(self, steps, width):
        super().__init__()
        self.width = width
        self.tables = [None] * steps

    def table(self, t):
        if self.tables[t] is None:
            phase = torch.arange(self.width)[None] * (t + 1) / torch.arange(1, 257)[:, None]
            self.tables[t] = torch.cat([phase.sin(), phase.cos()])
        return self.tables[t]

    def forward(self, t):
        return self.table(t)


class Denoiser(nn.Module):
    def __init__(self):
        super().__init__()
        self.time = TimestepTables(16, 256)
        self.net = nn.Sequential(nn.Linear(256, 512), nn.SiLU(), nn.Linear(512, 256))

    def forward(self, x, t):
        return self.net(x + self.time(t)[:256])


torch.manual_seed(0)
model = Denoiser()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
for _ in range(200):
    t = int(torch.randint(0, 16, ()))
    clean, noise = torch.randn(256, 256), torch.randn(256, 256)
    loss = (model(clean + noise * t / 16, t) - noise).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
