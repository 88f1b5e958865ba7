"""Comparing, hashing, printing and counting: what a debugger shows of model and optimizer."""
import sys
from collections import OrderedDict

import torch

torch.manual_seed(43)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
# memagent.attach(model, optimizer)
for step in range(3):
    model(torch.randn(4, 4)).pow(2).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    print(repr(model), repr(optimizer), model.extra_repr())
    for item in (model, model[0], optimizer):
        print(sorted(vars(item)), len(dir(item)), hash(item) == hash(item), item == item)
        for name, value in vars(item).items():
            if "hooks" in name:
                print(name, len(value), list(value), bool(value) if "forward" not in name else "", repr(value), value == OrderedDict(), value == {})
                print(list(value.keys()), list(value.values()), isinstance(value, OrderedDict), sys.getsizeof({**value}), dict(value), OrderedDict(value), [*value])
    print(model.state_dict().keys(), list(model.named_modules()), list(model.children()), model.training)
    print(sys.getrefcount(model), sys.getrefcount(optimizer), len(optimizer.param_groups), optimizer.defaults)
    print(optimizer.step.__name__, optimizer.step.__qualname__, type(optimizer.step), optimizer.step.__self__ is optimizer, optimizer.step.__func__ is torch.optim.SGD.step, torch.optim.SGD.step.hooked)
    print(type(model).__call__ is torch.nn.Module.__call__, type(model).forward.__qualname__, model.forward.__self__ is model)
