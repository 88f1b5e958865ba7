# process: own
"""torch.compile of function, model and step; graphs and recompilations are counted."""
import torch
from torch._dynamo.utils import counters

torch.manual_seed(46)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
graphs = []


def backend(graph, inputs):
    graphs.append(str(graph.graph))
    return graph.forward


wrapped = torch.compile(model, backend=backend)
# memagent.attach(model, optimizer)


@torch.compile(backend=backend, fullgraph=True)
def loss_of(x):
    return model(x).pow(2).mean()


for step in range(6):
    optimizer.zero_grad()
    loss = loss_of(torch.randn(4, 4)) if step % 2 else wrapped(torch.randn(4, 4)).pow(2).mean()
    loss.backward()
    optimizer.step()
    print(step, loss.item())
model.compile(backend=backend)
for step in range(3):
    optimizer.zero_grad()
    loss = model(torch.randn(4, 4)).pow(2).mean()
    loss.backward()
    optimizer.step()
    print(step, loss.item())
print(len(graphs), *graphs, dict(counters["graph_break"]), counters["stats"], wrapped)
