"""The best model so far is a copy of the model, with the best one before it.

# WINDOW 60
"""

import copy

import torch


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body = torch.nn.Linear(64, 64)
        self.best = None

    def remember(self):
        self.best = copy.deepcopy(self)  # LEAK any best


net = Net()
optimizer = torch.optim.SGD(net.body.parameters(), lr=0.01)
for step in range(70):
    loss = net.body(torch.randn(16, 64)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 5 == 4:
        net.remember()
