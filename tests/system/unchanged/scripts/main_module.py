# process: own
"""The script is the module __main__: imports, pickles, sources and stacks."""
import __main__
import inspect
import pickle
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


class Own:
    def method(self):
        return 1


print(__main__.step is step, sys.modules["__main__"].__dict__ is globals(), Own.__module__, step.__module__)
print(pickle.dumps(Own), inspect.getsource(Own.method), inspect.getfile(Own) == __file__, inspect.getmodule(step))
print(__name__, __spec__, __package__, type(__loader__).__name__, __builtins__, __main__)
print(step(), sys.argv[1:], inspect.currentframe().f_code.co_name, __loader__.get_source("__main__") is not None)
