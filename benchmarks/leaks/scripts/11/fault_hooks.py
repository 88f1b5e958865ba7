"""Train a classifier whose activations suffer random faults, as a fault injection campaign does."""

import torch
import torch.nn.functional as F
from torch import nn


class Net(nn.Module):
    def __init__(self, width: int = 512) -> None:
        super().__init__()
        self.stem = nn.Linear(64, width)
        self.body = nn.Linear(width, width)
        self.head = nn.Linear(width, 10)

    def forward(self, x):
        return self.head(F.relu(self.body(F.relu(self.stem(x)))))


class FaultInjector:
    def __init__(self, layer: nn.Module, rate: float) -> None:
        self.layer = layer
        self.rate = rate
        self.armed = None

    def arm(self, batch: int, width: int) -> None:
        hit = torch.rand(batch, width) < self.rate
        noise = torch.randn(batch, width)

        def inject(module, inputs, output):
            if self.armed is not inject:
                return output
            return torch.where(hit, output + noise, output)

        self.armed = inject
        self.layer.register_forward_hook(inject)


torch.manual_seed(0)
net = Net()
injector = FaultInjector(net.body, rate=0.01)
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
targets = torch.randint(0, 10, (512,))
for step in range(600):
    x = torch.randn(512, 64)
    injector.arm(512, 512)
    loss = F.cross_entropy(net(x), targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 100 == 0:
        print(step, float(loss))
