"""A handler of SIGCHLD and hooks of os.fork see only the script's own children."""
import os
import signal
import subprocess
import sys
import time

import torch

events = []
signal.signal(signal.SIGCHLD, lambda *_: events.append("child ended"))
os.register_at_fork(before=lambda: events.append("fork"))
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


for _ in range(3):
    print(step())
print(subprocess.run([sys.executable, "-S", "-c", "print(6 * 7)"], capture_output=True, text=True).stdout)
time.sleep(1.5)
for _ in range(3):
    print(step())
print(events)
