"""Told in https://github.com/pytorch/pytorch/issues/36372: module hooks append inputs and gradients to global lists."""

import torch
from torch import nn

model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)


def train_step(loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = model

    def forward(self, x):
        return self.body(x)


layer_inputs = []


def on_forward(module, inputs, output):
    print(end=type(module).__name__[:0])
    layer_inputs.append(inputs)  # LEAK hook layer_inputs


net = Net()
net.body[2].register_forward_hook(on_forward)
for _ in range(40):
    train_step(net(torch.rand(16, 32)).mean())
