"""A forward that counts, writes to an open file and to a new one, and uses shared memory."""
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


class Writes(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
        self.calls, self.shared = 0, multiprocessing.Value("i", 0)
        self.log = open("log.txt", "w")

    def forward(self, x):
        self.calls += 1
        self.log.write(f"{self.calls} {x.shape}\n")
        self.log.flush()
        with open(f"call_{self.calls % 3}.txt", "a") as file:
            file.write(f"{self.calls}\n")
        return self.layer(x)


writes = Writes()
second = torch.optim.SGD(writes.parameters(), lr=0.1)
for _ in range(10):
    writes(torch.randn(4, 4)).sum().backward()
    second.step()
    second.zero_grad()
__import__("time").sleep(1.0)
print(writes.calls, os.path.getsize("log.txt"), sorted(os.listdir()))
