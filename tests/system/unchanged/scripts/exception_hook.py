# process: own
"""A sys.excepthook of the script prints what it gets."""
import sys
import traceback

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


previous = sys.excepthook


def hook(kind, error, trace):
    print("hook", kind.__name__, error, [frame.name for frame in traceback.extract_tb(trace)])
    previous(kind, error, trace)


sys.excepthook = hook
print(step())


def fails():
    raise LookupError("in the script")


fails()
