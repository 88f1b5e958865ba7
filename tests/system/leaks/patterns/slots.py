import torch
from torch import nn

model = nn.Sequential(nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 8))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)


def train_step(loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


class Sample:
    __slots__ = ("data", "next")

    def __init__(self, data, following):
        self.data = data
        self.next = following


class Stack:
    __slots__ = ("head",)

    def __init__(self):
        self.head = None

    def push(self, data):
        self.head = Sample(data, self.head)  # LEAK any Stack.head


stack = Stack()
for step in range(70):
    batch = torch.randn(512, 128)
    stack.push(batch)
    train_step(model(batch).square().mean())
