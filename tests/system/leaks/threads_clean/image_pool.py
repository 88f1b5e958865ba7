"""The pool of CycleGAN: 48 images, then random replacement."""

import random

import torch
from torch import nn


class ImagePool:
    def __init__(self, size):
        self.size, self.images = size, []

    def query(self, images):
        result = []
        for image in images.detach():
            if len(self.images) < self.size:
                self.images.append(image.clone())
                result.append(image)
            elif random.random() > 0.5:
                chosen = random.randrange(self.size)
                result.append(self.images[chosen])
                self.images[chosen] = image.clone()
            else:
                result.append(image)
        return torch.stack(result)


random.seed(0)
generator = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 3, 3, padding=1))
discriminator = nn.Sequential(nn.Conv2d(3, 16, 4, 2), nn.LeakyReLU(0.2), nn.Conv2d(16, 1, 4, 2))
g_optimizer = torch.optim.Adam(generator.parameters(), lr=2e-4)
d_optimizer = torch.optim.Adam(discriminator.parameters(), lr=2e-4)
pool = ImagePool(48)
for step in range(80):
    real = torch.rand(8, 3, 64, 64)
    fake = generator(real)
    g_optimizer.zero_grad()
    (discriminator(fake) - 1).square().mean().backward()
    g_optimizer.step()
    d_optimizer.zero_grad()
    d_loss = (discriminator(real) - 1).square().mean() + discriminator(
        pool.query(fake)
    ).square().mean()
    d_loss.backward()
    d_optimizer.step()
