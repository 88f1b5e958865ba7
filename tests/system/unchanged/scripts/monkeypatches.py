"""Steps that a script replaces: on the object, on the class, with functools.wraps, and by a scheduler."""
import functools
import warnings

import torch

torch.manual_seed(54)
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
# memagent.attach(model, optimizer)


def count(call):
    @functools.wraps(call)
    def wrapper(*args, **kwargs):
        wrapper.calls += 1
        return call(*args, **kwargs)

    wrapper.calls = 0
    return wrapper


def train(steps):
    for _ in range(steps):
        model(torch.randn(4, 4)).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()


train(2)
optimizer.step = count(optimizer.step)
model.forward = count(model.forward)
train(3)
print(optimizer.step.calls, model.forward.calls, optimizer.step.__wrapped__.__self__ is optimizer)
del optimizer.step
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 0.9**epoch)
    scheduler.step()
    train(2)
    scheduler.step()
print([str(item.message)[:60] for item in caught], scheduler.get_last_lr(), "step" in vars(optimizer))
del optimizer.step, model.forward
original = torch.optim.SGD.step
torch.optim.SGD.step = count(original)
torch.nn.Linear.forward = count(torch.nn.Linear.forward)
train(3)
print(torch.optim.SGD.step.calls, torch.nn.Linear.forward.calls, original.hooked)
torch.optim.SGD.step = original
other = torch.optim.SGD(model.parameters(), lr=0.1)
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    torch.optim.lr_scheduler.StepLR(other, 1).step()
print([str(item.message)[:60] for item in caught], model.weight.sum().item())
init = torch.optim.Optimizer.__init__
torch.optim.Optimizer.__init__ = count(init)
torch.optim.Adam(model.parameters())
print(torch.optim.Optimizer.__init__.calls, init.__name__, init.__qualname__, init.__module__)
