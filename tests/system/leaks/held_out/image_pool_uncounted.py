"""A GAN's pool of generated images should hold 50, but it never counts what it stores."""

import random
import sys

import torch
from torch import nn

STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 150


class ImagePool:
    def __init__(self, pool_size):
        self.pool_size = pool_size
        self.num_images = 0
        self.images = []

    def query(self, images):
        returned = []
        for image in images:
            image = image.detach().unsqueeze(0)
            if self.num_images < self.pool_size:
                self.images.append(image.clone())  # LEAK any images
                returned.append(image)
            elif random.random() > 0.5:
                index = random.randrange(self.pool_size)
                returned.append(self.images[index])
                self.images[index] = image.clone()
            else:
                returned.append(image)
        return torch.cat(returned)


generator = nn.Sequential(
    nn.Conv2d(3, 8, 3, padding=1), nn.LeakyReLU(0.2), nn.Conv2d(8, 3, 3, padding=1), nn.Tanh()
)
discriminator = nn.Sequential(
    nn.Conv2d(3, 8, 4, stride=2), nn.LeakyReLU(0.2), nn.Conv2d(8, 1, 4, stride=2)
)
optimizer_g = torch.optim.Adam(generator.parameters(), lr=2e-4, betas=(0.5, 0.999))
optimizer_d = torch.optim.Adam(discriminator.parameters(), lr=2e-4, betas=(0.5, 0.999))
pool = ImagePool(50)
for step in range(STEPS // 2):
    real_a, real_b = torch.rand(4, 3, 40, 40), torch.rand(4, 3, 40, 40)
    fake_b = generator(real_a)
    optimizer_g.zero_grad()
    (discriminator(fake_b) - 1).pow(2).mean().backward()
    optimizer_g.step()
    optimizer_d.zero_grad()
    loss_d = (discriminator(real_b) - 1).pow(2).mean()
    loss_d = loss_d + discriminator(pool.query(fake_b)).pow(2).mean()
    loss_d.backward()
    optimizer_d.step()
