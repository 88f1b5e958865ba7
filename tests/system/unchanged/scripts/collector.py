"""The garbage collector: disabled, frozen, with callbacks, and objects that die at once."""
import gc
import weakref

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


print([step() for _ in range(3)])
gc.collect()
gc.disable()
phases = []
gc.callbacks.append(lambda phase, info: phases.append((phase, info["generation"])))
for _ in range(40):
    step()
print(phases, gc.isenabled(), len(gc.callbacks), gc.get_threshold())
other = torch.nn.Linear(4, 4)
second = torch.optim.Adam(other.parameters())
for _ in range(3):
    other(torch.ones(2, 4)).sum().backward()
    second.step()
references = [weakref.ref(other), weakref.ref(second), weakref.ref(other.weight)]
del other, second
print([reference() is None for reference in references])
gc.freeze()
print(gc.get_freeze_count() > 0, step())
gc.unfreeze()
gc.enable()
print(gc.isenabled(), gc.get_debug(), gc.garbage)
