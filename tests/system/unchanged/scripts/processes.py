"""multiprocessing: fork, a pool, a queue, a pipe, and active_children."""
import multiprocessing
import os

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


def work(number):
    return number**2, round(step(), 6)


context = multiprocessing.get_context("fork")
print(step())
with context.Pool(2) as pool:
    print(sorted(item[0] for item in pool.map(work, range(4))))
queue = context.Queue()
process = context.Process(target=lambda: queue.put([step() for _ in range(3)]))
process.start()
print(queue.get())
process.join()
print(process.exitcode, multiprocessing.active_children(), step(), sorted(k for k in os.environ if k.startswith("PYTHON")))
