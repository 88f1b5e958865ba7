"""Hooks of the script: their order, their handles, ids, results, removals and errors."""
import torch
from torch.utils.hooks import RemovableHandle

torch.manual_seed(53)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 1))
before = model.register_forward_hook(lambda m, a, out: print("early"))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
# memagent.attach(model, optimizer)
first = RemovableHandle.next_id


def step():
    loss = model(torch.randn(4, 4)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


print(step())
handles = [
    model.register_forward_hook(lambda m, a, out: print("forward") or out * 2),
    model.register_forward_pre_hook(lambda m, a: print("pre") or (a[0] + 1,), prepend=True),
    model.register_forward_pre_hook(lambda m, a, k: print("kwargs", sorted(k)), with_kwargs=True),
    model.register_forward_hook(lambda *a: print("always"), always_call=True),
    model.register_full_backward_hook(lambda m, i, o: print("backward")),
    optimizer.register_step_pre_hook(lambda o, a, k: print("step pre", len(a), k)),
    optimizer.register_step_post_hook(lambda o, a, k: print("step post", len(a), k)),
    torch.nn.modules.module.register_module_forward_hook(lambda m, a, o: print("global", type(m).__name__)),
]
print([handle.id for handle in handles] if before.id == 0 else [handle.id - first for handle in handles][0] >= 0)
for _ in range(3):
    print(step())
    print(len(model._forward_hooks), len(model._forward_pre_hooks), len(optimizer._optimizer_step_pre_hooks), list(model._forward_hooks.values())[0] is not None)
before.remove()
for handle in handles:
    handle.remove()
print(step(), len(model._forward_hooks), RemovableHandle.next_id - before.id)


def fails(*_):
    raise KeyError("hook")


for register in (model.register_forward_hook, model.register_forward_pre_hook, optimizer.register_step_pre_hook, optimizer.register_step_post_hook):
    with register(fails) as handle:
        try:
            step()
        except KeyError as error:
            print("raised", error)
print(step(), step())
model._forward_hooks.clear()
model._forward_pre_hooks.clear()
optimizer._optimizer_step_post_hooks.clear()
print(step(), model._forward_hooks, optimizer._optimizer_step_post_hooks)
