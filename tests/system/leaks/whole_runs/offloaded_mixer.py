"""As in: AlibabaPAI/torchacc#41; lightning-thunder#1688; pytorch#115255."""

import torch
from torch import nn

from offloaded_mixer_lib.offload import ActivationOffload


class MixerBlock(nn.Module):
    def __init__(self, tokens, dim):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.token = nn.Sequential(nn.Linear(tokens, tokens), nn.GELU(), nn.Linear(tokens, tokens))
        self.channel = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))

    def forward(self, x):
        x = x + self.token(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.channel(self.norm2(x))


class Mixer(nn.Module):
    def __init__(self, tokens=16, dim=96, depth=5, classes=8):
        super().__init__()
        self.patch = nn.Linear(48, dim)
        self.blocks = nn.ModuleList(MixerBlock(tokens, dim) for _ in range(depth))
        self.deep = nn.Sequential(nn.Linear(dim, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh())
        self.head = nn.Linear(64, classes)
        self.offload = ActivationOffload()

    def forward(self, patches):
        x = self.patch(patches)
        for block in self.blocks:
            x = block(x)
        x = x.unflatten(1, (4, 4)).mean(2)
        with self.offload():
            x = self.deep(x)
        return self.head(x.mean(1))


def batch(n):
    images = torch.randn(n, 16, 48)
    return images, (images[:, :, 0].sum(1) * 0.5).round().long() % 8


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(1)
    model = Mixer()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(800):
        x, y = batch(80)
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 100 == 0:
            print("step", step, "loss", round(loss.item(), 4))
