"""A denoising model with an average of its weights, sampled at the end."""
import copy

import torch
from torch import nn

torch.manual_seed(22)
model = nn.Sequential(nn.Linear(5, 32), nn.SiLU(), nn.Linear(32, 4))
ema = copy.deepcopy(model).requires_grad_(False)
beta = torch.linspace(1e-4, 0.3, 10)
alpha_bar = torch.cumprod(1 - beta, 0)
opt = torch.optim.AdamW(model.parameters(), lr=2e-3)
# memagent.attach(model, opt)
for step in range(15):
    x0, t, eps = torch.randn(16, 4), torch.randint(0, 10, (16,)), torch.randn(16, 4)
    xt = alpha_bar[t, None].sqrt() * x0 + (1 - alpha_bar[t, None]).sqrt() * eps
    loss = (model(torch.cat([xt, t[:, None] / 10], 1)) - eps).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    with torch.no_grad():
        for slow, fast in zip(ema.parameters(), model.parameters()):
            slow.lerp_(fast, 0.1)
    print(step, loss.item())
x = torch.randn(2, 4)
for t in reversed(range(10)):
    with torch.no_grad():
        eps = ema(torch.cat([x, torch.full((2, 1), t / 10)], 1))
    x = (x - beta[t] / (1 - alpha_bar[t]).sqrt() * eps) / (1 - beta[t]).sqrt() + beta[t].sqrt() * torch.randn(2, 4) * (t > 0)
print(x.tolist())
torch.save({"ema": ema, "opt": opt.state_dict()}, "diffusion.pt")
