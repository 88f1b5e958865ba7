"""GAN on coloured blobs, with a callback interface.

udacity/deep-learning-v2-pytorch#106 and akanimax/msg-gan-v1#2 report memory kept from sampled images.
"""
import torch
from torch import nn


class Callback:
    def on_batch_end(self, trainer, logs): ...

    def on_epoch_end(self, trainer, epoch): ...


class History(Callback):
    def __init__(self):
        self.batches = []

    def on_batch_end(self, trainer, logs):
        self.batches.append(logs)

    def curve(self, key):
        return [float(b[key]) for b in self.batches]


class Printer(Callback):
    def on_epoch_end(self, trainer, epoch):
        curve = trainer.history.curve("d_loss")[-trainer.per_epoch :]
        print(f"epoch {epoch}: d_loss {sum(curve) / len(curve):.4f}")


class Trainer:
    def __init__(self, per_epoch=60):
        self.g = nn.Sequential(
            nn.Linear(32, 48 * 8 * 8), nn.Unflatten(1, (48, 8, 8)), nn.ReLU(),
            nn.ConvTranspose2d(48, 24, 4, 2, 1), nn.ReLU(), nn.ConvTranspose2d(24, 3, 4, 2, 1), nn.Tanh(),
        )  # fmt: skip
        self.d = nn.Sequential(
            nn.Conv2d(3, 24, 4, 2, 1), nn.LeakyReLU(0.2), nn.Conv2d(24, 48, 4, 2, 1), nn.LeakyReLU(0.2), nn.Flatten(), nn.Linear(48 * 64, 1)
        )
        self.g_opt = torch.optim.Adam(self.g.parameters(), lr=2e-4, betas=(0.5, 0.999))
        self.d_opt = torch.optim.Adam(self.d.parameters(), lr=2e-4, betas=(0.5, 0.999))
        self.per_epoch = per_epoch
        self.history = History()
        self.callbacks = [self.history, Printer()]

    def batch(self, n=24):
        colour = torch.rand(n, 3, 1, 1) * 2 - 1
        return (colour + 0.1 * torch.randn(n, 3, 32, 32)).clamp(-1, 1)

    def train_step(self):
        bce = nn.functional.binary_cross_entropy_with_logits
        real = self.batch()
        fake = self.g(torch.randn(len(real), 32))
        d_real, d_fake = self.d(real), self.d(fake.detach())
        d_loss = bce(d_real, torch.ones_like(d_real)) + bce(d_fake, torch.zeros_like(d_fake))
        self.d_opt.zero_grad()
        d_loss.backward()
        self.d_opt.step()
        verdict = self.d(fake)
        g_loss = bce(verdict, torch.ones_like(verdict))
        self.g_opt.zero_grad()
        g_loss.backward()
        self.g_opt.step()
        return {"d_loss": d_loss.item(), "g_loss": g_loss.item(), "samples": fake.detach()}

    def fit(self, epochs):
        for epoch in range(epochs):
            for _ in range(self.per_epoch):
                logs = self.train_step()
                for callback in self.callbacks:
                    callback.on_batch_end(self, logs)
            for callback in self.callbacks:
                callback.on_epoch_end(self, epoch)


torch.manual_seed(9)
torch.set_num_threads(1)
Trainer().fit(epochs=10)
