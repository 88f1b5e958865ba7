"""A pool of 40 generated images fills, then replaces: the pool as it should be."""

import random
import sys

import torch
from torch import nn

STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 300
# CONFIRM 80


class ImagePool:
    def __init__(self, pool_size):
        self.pool_size = pool_size
        self.images = []

    def query(self, images):
        returned = []
        for image in images:
            image = image.detach().unsqueeze(0)
            if len(self.images) < self.pool_size:
                self.images.append(image.clone())
                returned.append(image)
            elif random.random() > 0.5:
                index = random.randrange(self.pool_size)
                returned.append(self.images[index])
                self.images[index] = image.clone()
            else:
                returned.append(image)
        return torch.cat(returned)


generator = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 3, 3, padding=1))
discriminator = nn.Sequential(nn.Conv2d(3, 8, 4, stride=2), nn.ReLU(), nn.Conv2d(8, 1, 4, stride=2))
optimizer_g = torch.optim.Adam(generator.parameters(), lr=2e-4)
optimizer_d = torch.optim.Adam(discriminator.parameters(), lr=2e-4)
pool = ImagePool(40)
for step in range(STEPS // 2):
    real_a, real_b = torch.rand(1, 3, 64, 64), torch.rand(1, 3, 64, 64)
    fake_b = generator(real_a)
    optimizer_g.zero_grad()
    (discriminator(fake_b) - 1).pow(2).mean().backward()
    optimizer_g.step()
    optimizer_d.zero_grad()
    fake = discriminator(pool.query(fake_b)).pow(2).mean()
    ((discriminator(real_b) - 1).pow(2).mean() + fake).backward()
    optimizer_d.step()
