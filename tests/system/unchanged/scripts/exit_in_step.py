"""SystemExit leaves an optimizer's step, through finally and a context manager."""
import contextlib
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


class Guarded(torch.optim.SGD):
    def step(self, closure=None):
        super().step(closure)
        if self.param_groups[0]["lr"] < 0.05:
            sys.exit(3)


@contextlib.contextmanager
def announced():
    try:
        yield
    except BaseException as error:
        print("left by", repr(error), error.__context__)
        raise


optimizer = Guarded(model.parameters(), lr=0.1)
with announced():
    try:
        for _ in range(20):
            print(step())
            optimizer.param_groups[0]["lr"] *= 0.9
    finally:
        print("finally")
