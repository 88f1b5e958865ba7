"""Lists of floats for every sample and layer."""

# Keeps the loss of every sample and every layer's gradient norm for the report at the end.
from collections import defaultdict

import torch
from torch import nn

torch.set_num_threads(1)


class History:
    def __init__(self):
        self.values = defaultdict(list)

    def log(self, **values):
        for name, value in values.items():
            self.values[name].append(float(value))

    def extend(self, name, values):
        self.values[name].extend(values)

    def summary(self, name, last=1000):
        tail = self.values[name][-last:]
        return sum(tail) / len(tail)


def dataset(n=4096):
    g = torch.Generator().manual_seed(0)
    x = torch.randn(n, 3, 16, 16, generator=g)
    return x, (x.mean((1, 2, 3)) > 0).long()


torch.manual_seed(0)
net = nn.Sequential(
    nn.Conv2d(3, 64, 3, padding=1),
    nn.ReLU(),
    nn.MaxPool2d(2),
    nn.Conv2d(64, 64, 3, padding=1),
    nn.ReLU(),
    nn.AdaptiveAvgPool2d(2),
    nn.Flatten(),
    nn.Linear(256, 2),
)
opt = torch.optim.AdamW(net.parameters(), lr=1e-3)
x, y = dataset()
history = History()
for epoch in range(15):
    for index in torch.randperm(len(x)).split(64):
        losses = nn.functional.cross_entropy(net(x[index]), y[index], reduction="none")
        opt.zero_grad()
        losses.mean().backward()
        norms = {f"norm.{n}": p.grad.norm() for n, p in net.named_parameters()}
        opt.step()
        history.log(loss=losses.mean(), **norms)
        history.extend("sample", losses.tolist())
    print(epoch, round(history.summary("loss", 64), 4), round(history.summary("sample"), 4))
