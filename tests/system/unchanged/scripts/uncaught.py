"""An uncaught error with a cause, whose traceback goes to stderr."""
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


def load():
    try:
        {}["data"]
    except KeyError as error:
        raise RuntimeError("no data") from error


def train():
    print(step(), step())
    try:
        load()
    except RuntimeError:
        raise ValueError("training failed")


train()
