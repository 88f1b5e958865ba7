"""An error out of the optimizer's constructor, with the script's own lines in the traceback."""
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


print(step())
try:
    torch.optim.SGD([], lr=0.1)
except ValueError as error:
    print(error)
torch.optim.Adam(model.parameters(), lr=-1.0)
