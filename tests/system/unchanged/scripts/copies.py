"""Copies inside the step, of model and optimizer, and what they compute."""
import copy

import torch

torch.manual_seed(42)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
# memagent.attach(model, optimizer)
for step in range(5):
    shallow, deep = copy.copy(model), copy.deepcopy(model)
    x = torch.randn(4, 4)
    loss = shallow(x).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item(), deep(x).sum().item(), model(x).sum().item())
    other = copy.deepcopy(optimizer)
    other.step()
    both = copy.deepcopy((model, optimizer))
    both[0](x).sum().backward()
    both[1].step()
    print(both[0](x).sum().item(), sorted(vars(shallow)))
    print(shallow._forward_hooks == model._forward_hooks, deep._forward_pre_hooks == model._forward_pre_hooks)
