"""Meta learning: the inner steps are functional, with gradients through them."""
import torch
from torch import nn
from torch.func import functional_call, grad, vmap

torch.manual_seed(21)
net = nn.Sequential(nn.Linear(1, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
# memagent.attach(net, optimizer)


def loss_of(params, x, y):
    return (functional_call(net, params, (x,)) - y).pow(2).mean()


def task_loss(x1, y1, x2, y2):
    params = dict(net.named_parameters())
    gradients = grad(loss_of)(params, x1, y1)
    return loss_of({k: p - 0.1 * gradients[k] for k, p in params.items()}, x2, y2)


for step in range(8):
    A, phase = torch.rand(4, 1, 1) * 4, torch.rand(4, 1, 1) * 3
    x1, x2 = torch.rand(2, 4, 10, 1) * 10 - 5
    loss = vmap(task_loss)(x1, A * torch.sin(x1 + phase), x2, A * torch.sin(x2 + phase)).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item())
