# process: own
"""torch.export, fx, jit.script, jit.trace, AOT autograd and make_fx between two steps."""
import warnings

import torch

warnings.simplefilter("ignore")
torch.manual_seed(44)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
# memagent.attach(model, optimizer)
x = torch.randn(3, 4)
for step in range(3):
    optimizer.zero_grad()
    model(x).pow(2).mean().backward()
    optimizer.step()
    exported = torch.export.export(model, (x,))
    print(exported, exported.module()(x).tolist())
    print(torch.fx.symbolic_trace(model).graph)
    scripted, traced = torch.jit.script(model), torch.jit.trace(model, x)
    print(scripted.graph, scripted.code, traced.graph, traced(x).sum().item(), scripted(x).sum().item())
    torch.jit.freeze(torch.jit.script(model.eval()))
    model.train()
    print(torch.fx.experimental.proxy_tensor.make_fx(lambda x: model(x))(x).graph)
