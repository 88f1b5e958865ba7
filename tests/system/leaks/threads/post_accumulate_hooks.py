"""Each forward registers a hook on the weight's gradient, which keeps what it scales by."""

import torch
from torch import nn


class ScaledLinear(nn.Linear):
    def forward(self, x):
        scale = x.detach().abs().mean(0)

        def divide(weight):
            weight.grad.div_(scale + 1.0)

        self.weight.register_post_accumulate_grad_hook(divide)  # LEAK any hook
        return super().forward(x)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = ScaledLinear(256, 32)
        self.outer = nn.Linear(32, 1)

    def forward(self, x):
        return self.outer(self.inner(x).relu())


def main():
    net = Net()
    optimizer = torch.optim.RMSprop(net.parameters(), lr=1e-4)
    for _ in range(70):
        x = torch.randn(16, 256)
        loss = (net(x).squeeze(1) - x.sum(1)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


main()
