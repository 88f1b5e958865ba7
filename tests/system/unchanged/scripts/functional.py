"""torch.func: ensembles by vmap, jacobians, per-sample gradients, and a functional call of the model."""
import torch
from torch.func import functional_call, grad, hessian, jacrev, stack_module_state, vmap

torch.manual_seed(56)
models = [torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1)) for _ in range(3)]
params, buffers = stack_module_state(models)
optimizer = torch.optim.SGD(params.values(), lr=0.1)
base = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
second = torch.optim.SGD(base.parameters(), lr=0.1)
# memagent.attach(base, second)


def call(p, b, x):
    return functional_call(base, (p, b), (x,))


for step in range(6):
    x = torch.randn(5, 3)
    loss = vmap(call, (0, 0, None))(params, buffers, x).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    value = base(x).pow(2).mean()
    second.zero_grad()
    value.backward()
    second.step()
    detached = {k: v.detach() for k, v in base.named_parameters()}
    per_sample = vmap(grad(lambda p, row: call(p, {}, row).sum()), (None, 0))(detached, x)
    print(step, loss.item(), value.item(), {k: v.sum().item() for k, v in per_sample.items()})
print(jacrev(base)(x[0]).tolist(), hessian(lambda y: base(y).sum())(x[0]).sum().item())
