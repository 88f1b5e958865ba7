"""Optimizers of the script's own: one object without a base class, and a schedule around it."""
import torch


class SGD:
    def __init__(self, params, lr):
        self.params, self.lr = list(params), lr

    def step(self, closure=None):
        with torch.no_grad():
            for p in self.params:
                p -= self.lr * p.grad

    def zero_grad(self):
        for p in self.params:
            p.grad = None


class NoamOpt:
    def __init__(self, optimizer, warmup):
        self.optimizer, self.warmup, self._step = optimizer, warmup, 0

    def step(self):
        self._step += 1
        self.optimizer.lr = 0.1 * min(self._step**-0.5, self._step * self.warmup**-1.5)
        self.optimizer.step()


torch.manual_seed(19)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
optimizer = NoamOpt(SGD(model.parameters(), 0.1), 4)
for step in range(12):
    optimizer.optimizer.zero_grad()
    loss = model(torch.randn(8, 4)).pow(2).mean()
    loss.backward()
    optimizer.step()
    print(step, loss.item(), optimizer.optimizer.lr)
