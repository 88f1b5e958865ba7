"""Two thousand modules, shared ones, lists of lists, None children and unused parameters."""
import torch

torch.manual_seed(63)
shared = torch.nn.Linear(2, 2)
model = torch.nn.Sequential(*(torch.nn.Sequential(torch.nn.Linear(2, 2), shared, torch.nn.Tanh()) for _ in range(500)))
model.register_module("nothing", None)
model.register_parameter("none", None)
del model._modules["nothing"]
optimizer = torch.optim.Adam([*model.parameters(), torch.nn.Parameter(torch.zeros(3))], lr=0.001)
# memagent.attach(model, optimizer)
for step in range(3):
    loss = (model(torch.randn(2, 2)) - 1).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item(), len(list(model.modules())), len(optimizer.state))
