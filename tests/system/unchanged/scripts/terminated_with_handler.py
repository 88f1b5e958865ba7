"""SIGTERM whose handler saves and exits."""
import os
import signal
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


def stop(number, frame):
    print("handler", number, frame.f_code.co_name)
    torch.save(model.state_dict(), "last.pt")
    sys.exit(128 + number)


signal.signal(signal.SIGTERM, stop)
print(step())
os.kill(os.getpid(), signal.SIGTERM)
print(step())
