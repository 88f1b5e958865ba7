"""The clients are there from the start: each of them keeps the updates of its rounds."""

import torch


class Client:
    def __init__(self, name):
        self.name = name
        self.updates = {}

    def train(self, model, optimizer, step):
        loss = model(torch.randn(16, 64)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        self.updates[step] = model.weight.grad.clone()  # LEAK any updates


class Federation:
    def __init__(self, names):
        self.clients = {}
        for name in names:
            self.clients[name] = Client(name)


model = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
clients = list(Federation("abcdefgh").clients.values())
for step in range(70):
    clients[step % 8].train(model, optimizer, step)
