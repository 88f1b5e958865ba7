"""A critic that steps five times as often, and a gradient penalty with create_graph."""
import torch
from torch import nn

torch.manual_seed(16)
generator = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 6))
critic = nn.Sequential(nn.Linear(6, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1))
steps = [torch.optim.RMSprop(m.parameters(), lr=5e-4) for m in (generator, critic)]
# memagent.attach([generator, critic], steps)
for iteration in range(6):
    for _ in range(5):
        real, fake = torch.rand(8, 6), generator(torch.randn(8, 4)).detach()
        mixed = (0.3 * real + 0.7 * fake).requires_grad_()
        grad = torch.autograd.grad(critic(mixed).sum(), mixed, create_graph=True)[0]
        loss = critic(fake).mean() - critic(real).mean() + 10 * (grad.norm(2, 1) - 1).pow(2).mean()
        steps[1].zero_grad()
        loss.backward()
        steps[1].step()
    value = -critic(generator(torch.randn(8, 4))).mean()
    steps[0].zero_grad()
    value.backward()
    steps[0].step()
    print(iteration, loss.item(), value.item())
