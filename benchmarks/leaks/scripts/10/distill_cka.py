# Distillation with a look at the teacher's features every few steps.
# Seen in: meta-pytorch/opacus#176, chr5tphr/zennit#13 (hooks that stay and keep what they saw)
import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
torch.set_num_threads(1)
STEPS, BATCH, T = 650, 128, 4.0


def mlp(width, depth):
    layers = [nn.Linear(256, width), nn.GELU()]
    for _ in range(depth):
        layers += [nn.Linear(width, width), nn.GELU()]
    return nn.Sequential(*layers, nn.Linear(width, 20))


def linear_cka(x, y):
    x, y = x - x.mean(0), y - y.mean(0)
    return (y.T @ x).norm() ** 2 / ((x.T @ x).norm() * (y.T @ y).norm())


def features_of(net, layer, x):
    seen = []

    def hook(module, inputs, output):
        seen.append(output.detach())

    net[layer].register_forward_hook(hook)
    with torch.no_grad():
        net(x)
    return seen[0]


teacher = mlp(768, 4).eval()
student = mlp(256, 2)
opt = torch.optim.SGD(student.parameters(), lr=0.05, momentum=0.9)
probe = torch.randn(BATCH, 256)

for step in range(1, STEPS + 1):
    x = torch.randn(BATCH, 256)
    with torch.no_grad():
        soft = F.softmax(teacher(x) / T, dim=-1)
    loss = F.kl_div(F.log_softmax(student(x) / T, dim=-1), soft, reduction="batchmean") * T * T
    opt.zero_grad(set_to_none=True)
    loss.backward()
    opt.step()

    if step % 100 == 1:
        t = features_of(teacher, 3, probe)
        with torch.no_grad():
            s = student[:4](probe)
        print(f"{step:4d}  loss {loss.item():.4f}  cka {linear_cka(t[:, :256], s).item():.3f}")
