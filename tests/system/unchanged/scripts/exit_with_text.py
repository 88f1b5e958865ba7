"""sys.exit with a text, which goes to stderr."""
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


print(step(), step())
try:
    sys.exit(7)
except SystemExit as error:
    print("caught", error.code)
print(step())
sys.exit(f"stopped after {4} steps")
