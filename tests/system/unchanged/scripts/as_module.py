# process: own
# as: module
"""The script runs as a module, with its own spec."""
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


print([step() for _ in range(5)], __name__, __spec__.name, __package__, sys.argv[1:], sys.argv[0].endswith("as_module.py"))
raise RuntimeError("in a module")
