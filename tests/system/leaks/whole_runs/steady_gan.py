"""As in: facebookresearch/dinov3#150, #340."""

import gc

import torch
from torch import nn


class StepContext:
    """What one optimisation step hands to its callbacks."""

    def __init__(self, step, real, fake):
        self.step = step
        self.real = real
        self.fake = fake
        self.losses = {}
        self.handlers = {
            "discriminator": self.note_d,
            "generator": self.note_g,
        }  # LEAK any cycle|StepContext|handlers

    def note_d(self, loss):
        self.losses["d"] = loss.item()

    def note_g(self, loss):
        self.losses["g"] = loss.item()

    def fire(self, name, loss):
        self.handlers[name](loss)


class Trainer:
    def __init__(self, data_dim=384, noise=64):
        self.noise = noise
        self.G = nn.Sequential(
            nn.Linear(noise, 1024),
            nn.ReLU(),
            nn.Linear(1024, 1024),
            nn.ReLU(),
            nn.Linear(1024, data_dim),
        )
        self.D = nn.Sequential(nn.Linear(data_dim, 1024), nn.LeakyReLU(0.2), nn.Linear(1024, 1))
        self.opt_g = torch.optim.Adam(self.G.parameters(), lr=1e-4, betas=(0.5, 0.9))
        self.opt_d = torch.optim.Adam(self.D.parameters(), lr=1e-4, betas=(0.5, 0.9))
        self.data_dim = data_dim

    def real_batch(self, n=96):
        phase = torch.rand(n, 1) * 6.28
        return torch.sin(torch.linspace(0, 25, self.data_dim) + phase)

    def step(self, number):
        real = self.real_batch()
        fake = self.G(torch.randn(len(real), self.noise))
        ctx = StepContext(number, real, fake.detach())  # LEAK any cycle|StepContext|handlers
        d_loss = (
            nn.functional.softplus(-self.D(real)).mean()
            + nn.functional.softplus(self.D(fake.detach())).mean()
        )
        self.opt_d.zero_grad()
        d_loss.backward()
        self.opt_d.step()
        ctx.fire("discriminator", d_loss)
        g_loss = nn.functional.softplus(-self.D(fake)).mean()
        self.opt_g.zero_grad()
        g_loss.backward()
        self.opt_g.step()
        ctx.fire("generator", g_loss)
        return ctx.losses


def main():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    trainer = Trainer()
    gc.disable()  # collections made single steps slow  # LEAK any cycle|StepContext|handlers
    for number in range(900):
        losses = trainer.step(number)
        if number % 100 == 0:
            print(number, losses)


if __name__ == "__main__":
    main()
