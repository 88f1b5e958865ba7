# killed: within a tick of its start
"""SIGTERM without a handler."""
import os
import signal

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


print(step(), step(), flush=True)
os.kill(os.getpid(), signal.SIGTERM)
