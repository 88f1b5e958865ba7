# options: -W error
"""Python -W error: a warning of memagent would be an error."""
import warnings

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


for _ in range(5):
    print(step())
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    for _ in range(40):
        step()
print(len(caught), len(warnings.filters))
try:
    warnings.warn("mine", stacklevel=1)
except UserWarning as error:
    print("raised", error)
