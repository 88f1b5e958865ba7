"""The closure that a step receives is the script's own, and so are errors out of it."""
import functools
import traceback

import torch


class Remembers(torch.optim.SGD):
    def step(self, closure=None):
        self.seen = closure
        return super().step(closure)


torch.manual_seed(50)
model = torch.nn.Linear(4, 2)
optimizers = [Remembers(model.parameters(), lr=0.01), torch.optim.LBFGS(model.parameters(), max_iter=2), torch.optim.SGD(model.parameters(), lr=0.01)]
# memagent.attach(model, optimizers)
x = torch.randn(8, 4)


def closure(scale=1.0):
    model.zero_grad()
    loss = scale * model(x).pow(2).mean()
    loss.backward()
    return loss


def fails():
    raise ValueError("in the closure")


optimizers[0].register_step_pre_hook(lambda o, args, kwargs: print("pre", args[1:] == (closure,), list(kwargs), [type(v) for v in kwargs.values()]))
optimizers[0].register_step_post_hook(lambda o, args, kwargs: print("post", args[1:] == (closure,), list(kwargs), [type(v) for v in kwargs.values()]))
for optimizer in optimizers:
    for _ in range(3):
        print(optimizer.step(closure).item())
        print(optimizer.step(closure=functools.partial(closure, 0.5)).item())
    try:
        optimizer.step(fails)
    except ValueError:
        print(traceback.format_exc().count("memagent"), len(traceback.extract_stack()) > 0)
print(optimizers[0].seen is fails)
