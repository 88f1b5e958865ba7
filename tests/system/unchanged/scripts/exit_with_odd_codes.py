"""Exit codes of other types, raised without sys.exit."""
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


for code in (None, True, -1, 256, 2.5, (1, 2)):
    try:
        sys.exit(code)
    except SystemExit as error:
        print(type(error.code), error.code, error.args)
try:
    sys.exit(1, 2)
except TypeError as error:
    print(error)
print(step())
raise SystemExit(-3)
