"""stdout is closed and its descriptor used again; the result goes to a file."""
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


losses = [step()]
sys.stdout.close()
os.close(1)
with open("losses.txt", "w") as file:
    losses += [step() for _ in range(5)]
    file.write(f"{file.fileno()} {losses}")
sys.stdout = None
