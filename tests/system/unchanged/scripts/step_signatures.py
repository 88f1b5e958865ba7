"""Optimizers whose step takes what it likes: a loss, keywords, generators, nothing but *args."""
import inspect

import torch
from torch.optim import SGD


class AveragedSGD(SGD):
    def step(self, loss):
        super().step()
        return loss.item()


class Extra(SGD):
    def step(self, closure=None, *, extra, **more):
        result = super().step(closure)
        return result, extra, sorted(more)


class Anything(SGD):
    def step(self, *args, **kwargs):
        super().step()
        return len(args), sorted(kwargs), [type(a).__name__ for a in args]


class LossNamedClosure(SGD):
    def step(self, closure):
        super().step()
        return closure.item(), type(closure).__name__


class CallableObject(SGD):
    def step(self, closure):
        value = closure()
        super().step()
        return value.item(), closure.calls, type(closure).__name__


class Closure:
    def __init__(self, call):
        self.call, self.calls = call, 0

    def __call__(self):
        self.calls += 1
        return self.call()


torch.manual_seed(49)
model = torch.nn.Linear(4, 2)
x = torch.randn(8, 4)
kinds = [AveragedSGD, Extra, Anything, LossNamedClosure, CallableObject]
optimizers = [kind(model.parameters(), lr=0.01) for kind in kinds]
# memagent.attach(model, optimizers)


def closure():
    for optimizer in optimizers:
        optimizer.zero_grad()
    loss = model(x).pow(2).mean()
    loss.backward()
    return loss


for round in range(3):
    averaged, extra, anything, named, callable_object = optimizers
    print(averaged.step(closure()), averaged.step(loss=closure()))
    print(extra.step(closure, extra=1), extra.step(extra=2, other=3))
    closure()
    print(anything.step(), anything.step(1, "two", three=3), anything.step(closure, closure=closure))
    print(named.step(closure()), named.step(closure=closure()))
    print(callable_object.step(Closure(closure)), callable_object.step(closure=Closure(closure)))
    for optimizer in optimizers:
        print(inspect.signature(optimizer.step), inspect.signature(type(optimizer).__init__), optimizer.step.__doc__)
print(inspect.signature(model.forward), inspect.signature(torch.optim.Optimizer.__init__), inspect.getsource(AveragedSGD.step))
