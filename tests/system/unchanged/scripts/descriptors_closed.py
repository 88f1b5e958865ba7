"""A daemon's habit: every descriptor above 2 is closed, and the next file gets one of them."""
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


print([step() for _ in range(3)])
os.closerange(3, 1024)
files = [open(f"{index}.txt", "w") for index in range(12)]
for index, file in enumerate(files):
    file.write(f"{index} {step()}\n")
    file.flush()
for _ in range(300):
    last = step()
print(last)
for file in files:
    file.close()
