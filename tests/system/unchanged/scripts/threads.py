"""Steps from a pool of threads, thread locals, timers, and what is left of threads."""
import concurrent.futures
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


local = threading.local()


def train(number):
    local.count = getattr(local, "count", 0) + 1
    return number, step()


with concurrent.futures.ThreadPoolExecutor(1) as pool:
    print(list(pool.map(train, range(4))))
timer = threading.Timer(0.01, lambda: print("timer", step()))
timer.start()
timer.join()
names = [thread.name for thread in threading.enumerate() if not thread.daemon]
print(names, threading.current_thread().name, hasattr(local, "count"))
