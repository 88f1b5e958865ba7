"""Threads that train, one that dies, and threading.excepthook."""
import threading

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


lock = threading.Lock()


def train(name, fails):
    with lock:
        for _ in range(3):
            print(name, step())
        if fails:
            raise ValueError(name)


threading.excepthook = lambda arguments: print(arguments.exc_type.__name__, arguments.exc_value, arguments.thread.name)
for name, fails in (("one", False), ("two", True), ("three", False)):
    thread = threading.Thread(target=train, args=(name, fails), name=name)
    thread.start()
    thread.join()
print(step())
