"""A model that calls itself deeply, a low recursion limit, and recursion errors."""
import sys

import torch

torch.manual_seed(60)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
# memagent.attach(model, optimizer)


def step():
    optimizer.zero_grad()
    loss = model(torch.randn(4, 4)).pow(2).mean()
    loss.backward()
    optimizer.step()
    return loss.item()


class Deep(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)

    def forward(self, x, depth):
        return x if depth == 0 else self.layer(self(x, depth - 1)).tanh()


deep = Deep()
inner = torch.optim.SGD(deep.parameters(), lr=0.01)
for depth in (5, 40):
    loss = deep(torch.randn(2, 4), depth).pow(2).mean()
    inner.zero_grad()
    loss.backward()
    inner.step()
    print(depth, loss.item())
try:
    deep(torch.randn(2, 4), 10**6)
except RecursionError:
    print("too deep")
sys.setrecursionlimit(150)
print([step() for _ in range(8)])
