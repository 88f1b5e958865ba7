"""The loop of the DCGAN tutorial, which keeps an image of each evaluation."""

import torch
from torch import nn

model = nn.Sequential(nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 8))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)


def train_step(loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


generator = nn.Linear(16, 128)
optimizer_g = torch.optim.SGD(generator.parameters(), lr=0.01)
G_losses, img_list = [], []
fixed_noise = torch.randn(64, 16)
for step in range(40):
    fake = generator(torch.randn(64, 16))
    train_step(model(fake.detach()).square().mean())
    error = -model(generator(torch.randn(64, 16))).mean()
    optimizer_g.zero_grad()
    error.backward()
    optimizer_g.step()
    G_losses.append(error.item())
    with torch.no_grad():
        img_list.append(generator(fixed_noise).cpu())  # LEAK list img_list
