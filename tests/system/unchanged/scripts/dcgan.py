"""Two optimizers: a generator and a discriminator with batch norm, and checkpoints of both."""
import torch
from torch import nn

torch.manual_seed(2)


def weights_init(m):
    if isinstance(m, nn.BatchNorm2d):
        nn.init.normal_(m.weight, 1.0, 0.02)


generator = nn.Sequential(
    nn.ConvTranspose2d(8, 4, 4, bias=False), nn.BatchNorm2d(4), nn.ReLU(True),
    nn.ConvTranspose2d(4, 1, 4, 2, 1, bias=False), nn.Tanh(),
)
discriminator = nn.Sequential(
    nn.Conv2d(1, 4, 4, 2, 1, bias=False), nn.BatchNorm2d(4), nn.LeakyReLU(0.2), nn.Conv2d(4, 1, 4),
    nn.Sigmoid(), nn.Flatten(0),
)
generator.apply(weights_init)
discriminator.apply(weights_init)
criterion = nn.BCELoss()
optimizer_d = torch.optim.Adam(discriminator.parameters(), lr=2e-4, betas=(0.5, 0.999))
optimizer_g = torch.optim.Adam(generator.parameters(), lr=2e-4, betas=(0.5, 0.999))
# memagent.attach([discriminator, generator], [optimizer_d, optimizer_g])
fixed = torch.randn(4, 8, 1, 1)
for step in range(12):
    discriminator.zero_grad()
    real = torch.rand(8, 1, 8, 8)
    loss_real = criterion(discriminator(real), torch.ones(8))
    loss_real.backward()
    fake = generator(torch.randn(8, 8, 1, 1))
    loss_fake = criterion(discriminator(fake.detach()), torch.zeros(8))
    loss_fake.backward()
    optimizer_d.step()
    generator.zero_grad()
    loss_g = criterion(discriminator(fake), torch.ones(8))
    loss_g.backward()
    optimizer_g.step()
    print(step, loss_real.item(), loss_fake.item(), loss_g.item())
with open("samples.bin", "wb") as file:
    file.write(generator(fixed).detach().numpy().tobytes())
torch.save(generator.state_dict(), "generator.pth")
torch.save(discriminator, "discriminator.pth")
