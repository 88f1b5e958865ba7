"""Forks in the middle: children train and exit, the parent waits for exactly its own."""
import os
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


print(step(), flush=True)
own = []
for code in (0, 4):
    pid = os.fork()
    if pid == 0:
        print("child", step(), flush=True)
        if code:
            sys.exit(code)
        os._exit(0)
    own.append(pid)
    found, status = os.wait()
    print(found == pid, os.waitstatus_to_exitcode(status))
for _ in range(5):
    print(step())
try:
    os.wait()
except ChildProcessError:
    print("no more children")
